"""What a reader of a report must not overlook, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmrl.evaluation.report.run_charts import kind_of
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.reward_hacking import fell, moves, parted
from mmrl.evaluation.run_reader import GREEDY, EvalSplit, RunRecord, evaluated_splits, read_run
from mmrl.evaluation.summary import Change, RunSummary, summarise_run
from mmrl.statistics.intervals import Interval, interval_text

Inner = tuple[EvalSplit, RunRecord, RunSummary | None]
"""A further set of evaluations of the run, and what it says; None where it says nothing yet."""


def cautions(record: RunRecord, summary: RunSummary | None, inner: Sequence[Inner] = ()) -> list[str]:
    """Rewards that part: trained from held-out ones, all prompts from one source, drawn answers from greedy ones. Then
    scorers that failed.
    """
    changes = shown_changes(record, summary.changes) if summary else {}
    risen = [n for n, change in changes.items() if kind_of(record, n) == "trained" and change.difference.mean > 0]
    found = divergence_texts(record) if summary else []
    if summary:
        found += _fallen_somewhere(summary, risen)
    for kind, _, other in inner:
        if other:
            found += _fallen_elsewhere(record, kind, other, risen)
    return [*found, *_failures(record), *(text for kind, its, _ in inner for text in _failures(its, kind.place))]


def read_splits(run: Path, until: int | None = None) -> list[Inner]:
    """The further sets that a run was evaluated on; with `until`, as if it had ended at that step."""
    read = [(kind, read_run(folder, until), folder) for kind, folder in evaluated_splits(run)]
    return [(kind, its, summarise_run(folder, until) if its.comparable else None) for kind, its, folder in read]


def shown_changes(record: RunRecord, changes: dict[str, Change]) -> dict[str, Change]:
    """Without a total that repeats the one reward that was trained on."""
    return {name: change for name, change in changes.items() if name != "total" or record.shows_total}


def divergence_texts(record: RunRecord) -> list[str]:
    """What `parting` finds surely, then what points that way and may be chance; constraints that do not hold."""
    base = record.first
    if base is None:
        return []
    last = Evaluation.load(record.folder, record.steps[-1], images=False)
    names = [name for name in base.values if name != "total" or record.shows_total]
    trained, watched = (
        moves(base, last, [n for n in names if kind_of(record, n) == k]) for k in ("trained", "held out")
    )
    found = parted(trained, watched)
    risen = ", ".join(name for name, move in trained.items() if move.difference.mean > 0)
    if risen and not found:
        found = [
            f"{risen} rose while {fell(name, move)}, "
            + ("lies below 0." if move.difference.verdict == "down" else "includes 0: it may be chance.")
            for name, move in watched.items()
            if move.difference.mean < 0
        ]
    for name, move in moves(base, last, list(record.constrained)).items():
        if move.after < (due := record.constrained[name]):
            found.append(f"{name} ended at {move.after:.3f}, below the {due:g} that it was to be held at.")
    return found


def _fallen_somewhere(summary: RunSummary, risen: list[str]) -> list[str]:
    """By source: what rose on all prompts together, and what says most whether it rose or not."""
    found = []
    for source, changes in summary.by_source.items():
        found += [
            f"{name} rose, but on {source} it fell by {_fall(changes[name].difference)}."
            for name in risen
            if name in changes and changes[name].difference.verdict == "down"
        ]
    if summary.headline not in risen:
        found += _sources(summary, "")
    return found


def _fallen_elsewhere(record: RunRecord, kind: EvalSplit, other: RunSummary, risen: list[str]) -> list[str]:
    found = []
    greedy = kind.folder == GREEDY
    rose = f"rose{_temperature(record)}" if greedy else "rose"
    for name in risen:
        if name not in other.changes:
            continue
        moved = other.changes[name].difference
        if moved.verdict == "down":
            found.append(f"{name} {rose}, but {kind.place} it fell by {_fall(moved)}.")
        elif greedy and name == other.headline and moved.mean < 0:
            found.append(
                f"{name} {rose}, but {kind.place} it fell by {_fall(moved)}; the interval includes 0: it may be chance."
            )
    return found + _sources(other, kind.place)


def _sources(summary: RunSummary, place: str) -> list[str]:
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
                told = ", ".join(f"{n} by {status}" for status, n in failed.items())
                total = sum(counts.values())
                text = f"step {step}: {name} failed on {sum(failed.values())} of {total} answers ({told})."
                found.append(_sentence(place, text))
    return found


def _fall(difference: Interval) -> str:
    return f"{-difference.mean:.3f} (95 % interval {interval_text(difference)})"


def _temperature(record: RunRecord) -> str:
    temperature = record.setting("evaluation.sampling.temperature") or record.setting("sampling.temperature")
    return f" at temperature {temperature:g}" if isinstance(temperature, int | float) else " where answers are drawn"


def _sentence(place: str, text: str) -> str:
    text = f"{place}, {text}" if place else text
    return text[0].upper() + text[1:]
