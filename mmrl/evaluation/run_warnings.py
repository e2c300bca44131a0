"""Warnings about a finished run, as sentences: rewards that diverged, sources that fell, scorers that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl.evaluation.results import Evaluation, RewardChange
from mmrl.evaluation.reward_hacking import describe_drop, diverged, reward_changes
from mmrl.evaluation.run_reader import GREEDY, EvalSplit, RunRecord, evaluated_splits, read_run
from mmrl.evaluation.summary import RunSummary, summarise_run
from mmrl.statistics.intervals import Interval, interval_text

SplitResult = tuple[EvalSplit, RunRecord, RunSummary | None]
"""A further set of evaluations of a run, and its summary; None if it was evaluated only once."""


def run_warnings(record: RunRecord, summary: RunSummary | None, splits: Sequence[SplitResult] = ()) -> list[str]:
    """Return sentences about rewards that diverge and about failed scorers.

    Trained rewards are compared with held-out ones, all prompts with each source, sampled answers with greedy ones.
    """
    changes = displayed_changes(record, summary.changes) if summary else {}
    risen = [n for n, change in changes.items() if record.role(n) == "trained" and change.difference.mean > 0]
    found = divergence_texts(record) if summary else []
    if summary:
        found += _fallen_by_source(summary, risen)
    for split, _, other in splits:
        if other:
            found += _fallen_in_split(record, split, other, risen)
    return [*found, *_failures(record), *(text for split, its, _ in splits for text in _failures(its, split.place))]


def read_splits(run: Path, until: int | None = None) -> list[SplitResult]:
    """Return the further sets that a run was evaluated on; with `until`, as if it had ended at that step."""
    read = [(split, read_run(folder, until), folder) for split, folder in evaluated_splits(run)]
    return [(split, its, summarise_run(folder, until) if its.comparable else None) for split, its, folder in read]


def displayed_changes(record: RunRecord, changes: Mapping[str, RewardChange]) -> dict[str, RewardChange]:
    """Return the changes without a total that repeats the only trained reward."""
    return {name: change for name, change in changes.items() if name != "total" or record.shows_total}


def divergence_texts(record: RunRecord) -> list[str]:
    """Return the sentences of `diverged`, else drops that may be chance; then constraints that are violated."""
    base = record.first
    if base is None:
        return []
    last = Evaluation.load(record.folder, record.steps[-1], images=False)
    names = [name for name in base.values if name != "total" or record.shows_total]
    trained, heldout = changes_by_role(record, last, names)
    found = diverged(trained, heldout)
    risen = ", ".join(name for name, change in trained.items() if change.difference.mean > 0)
    if risen and not found:
        found = [
            f"{risen} rose while {describe_drop(name, change)}, "
            + ("lies below 0." if change.difference.verdict == "down" else "includes 0: it may be chance.")
            for name, change in heldout.items()
            if change.difference.mean < 0
        ]
    for name, change in reward_changes(base, last, list(record.constrained)).items():
        if change.after < (threshold := record.constrained[name]):
            found.append(f"{name} ended at {change.after:.3f}, below its constraint of at least {threshold:g}.")
    return found


def divergence_step(record: RunRecord) -> int | None:
    """Return the first evaluation at which a held-out reward had diverged, as the run logged it; None without one.

    For a run that did not log it, the last evaluation is examined.
    """
    logged = record.curve("evaluation", "evaluation_parted")
    if logged:
        return next((step for step, flag in zip(logged.steps, logged.values, strict=True) if flag == 1), None)
    if not record.comparable or record.first is None:
        return None
    last = Evaluation.load(record.folder, record.steps[-1], images=False)
    return last.step if diverged(*changes_by_role(record, last, list(record.first.values))) else None


def changes_by_role(
    record: RunRecord, last: Evaluation, names: Sequence[str]
) -> tuple[dict[str, RewardChange], dict[str, RewardChange]]:
    """Return the changes from the first evaluation to `last`, of trained rewards and of held-out ones."""
    assert record.first is not None
    trained, heldout = ([name for name in names if record.role(name) == role] for role in ("trained", "held out"))
    return reward_changes(record.first, last, trained), reward_changes(record.first, last, heldout)


def _fallen_by_source(summary: RunSummary, risen: list[str]) -> list[str]:
    """Return the sources on which a reward fell that rose over all prompts, or on which the headline fell."""
    found = []
    for source, changes in summary.by_source.items():
        found += [
            f"{name} rose, but on {source} it fell by {_fall(changes[name].difference)}."
            for name in risen
            if name in changes and changes[name].difference.verdict == "down"
        ]
    if summary.headline not in risen:
        found += _fallen_sources(summary, "")
    return found


def _fallen_in_split(record: RunRecord, split: EvalSplit, other: RunSummary, risen: list[str]) -> list[str]:
    found = []
    greedy = split.folder == GREEDY
    rose = f"rose{_temperature(record)}" if greedy else "rose"
    for name in risen:
        if name not in other.changes:
            continue
        difference = other.changes[name].difference
        if difference.verdict == "down":
            found.append(f"{name} {rose}, but {split.place} it fell by {_fall(difference)}.")
        elif greedy and name == other.headline and difference.mean < 0:
            text = f"{name} {rose}, but {split.place} it fell by {_fall(difference)}"
            found.append(f"{text}; the interval includes 0: it may be chance.")
    return found + _fallen_sources(other, split.place)


def _fallen_sources(summary: RunSummary, place: str) -> list[str]:
    return [
        _sentence(place, f"on {source}, {summary.headline} fell by {_fall(summary.sources[source].difference)}.")
        for source in summary.sources_with("down")
    ]


def _failures(record: RunRecord, place: str = "") -> list[str]:
    found = []
    for step in dict.fromkeys([*record.steps[:1], *record.steps[-1:]]):
        for name, counts in Evaluation.load(record.folder, step, images=False).counts.items():
            failed = {status: n for status, n in sorted(counts.items()) if status in ("error", "timeout")}
            if failed and (name != "total" or record.shows_total):
                by_status = ", ".join(f"{n} by {status}" for status, n in failed.items())
                total = sum(counts.values())
                text = f"step {step}: {name} failed on {sum(failed.values())} of {total} answers ({by_status})."
                found.append(_sentence(place, text))
    return found


def _fall(difference: Interval) -> str:
    return f"{-difference.mean:.3f} (95 % interval {interval_text(difference)})"


def _temperature(record: RunRecord) -> str:
    temperature = record.setting("evaluation.sampling.temperature") or record.setting("sampling.temperature")
    return f" at temperature {temperature:g}" if isinstance(temperature, int | float) else " where answers are sampled"


def _sentence(place: str, text: str) -> str:
    text = f"{place}, {text}" if place else text
    return text[0].upper() + text[1:]
