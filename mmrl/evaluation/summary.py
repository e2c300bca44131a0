"""Summaries of runs: paired differences between the first and the last evaluation, in each run and over runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation, RewardChange, reward_change
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.statistics.intervals import Interval, interval_text, mean_over_seeds

COLOURS = {"up": "green", "down": "red", "unsure": "default"}
DIFFERENCE = "difference"
NUMBERS = ("base", "trained", DIFFERENCE, "95 % interval", "prompts", "not scored")


@dataclass(frozen=True)
class RunSummary:
    """The changes of one run."""

    name: str
    folder: Path
    steps: tuple[int, int]  # of the compared evaluations
    changes: dict[str, RewardChange]  # by reward
    by_source: dict[str, dict[str, RewardChange]]  # by source, then reward; only rewards that score the source
    diversity: tuple[float, float] | None  # before, after; None if not measured
    headline: str = "total"  # the total, or the only trained reward
    tokens: tuple[float, float] | None = None  # mean length of answers, before and after; None: no texts

    @property
    def diversity_ratio(self) -> float:
        """Diversity after / before; NaN if unknown."""
        return self.diversity[1] / self.diversity[0] if self.diversity and self.diversity[0] > 0 else math.nan

    @property
    def sources(self) -> dict[str, RewardChange]:
        """The change of the headline reward on each source; empty with one source."""
        if len(self.by_source) < 2:
            return {}
        return {source: found[self.headline] for source, found in self.by_source.items() if self.headline in found}

    def sources_with(self, verdict: str) -> list[str]:
        """Return the sources whose headline change has this verdict: `up`, `down` or `unsure`."""
        return [source for source, change in self.sources.items() if change.difference.verdict == verdict]


@dataclass(frozen=True)
class Summary:
    """The changes of several runs, usually runs of one recipe with different seeds."""

    runs: tuple[RunSummary, ...]
    over_runs: dict[str, Interval]  # {reward: mean over runs of the run's mean difference}
    diversity_ratio: Interval


def summarise(runs: Sequence[Path]) -> Summary:
    """Compare each run's first evaluation, step 0, with its last.

    Raises:
        EvaluationError: a folder is no run, has no evaluation at step 0 or no later one, or the two have different
            samples.
    """
    if not runs:
        raise EvaluationError("there is no run to summarise")
    found = [summarise_run(Path(folder)) for folder in runs]
    names = _distinct_names([run.folder for run in found])
    summaries = tuple(replace(run, name=name) for run, name in zip(found, names, strict=True))
    names = [name for name in summaries[0].changes if all(name in run.changes for run in summaries)]
    return Summary(
        runs=summaries,
        over_runs={n: mean_over_seeds([run.changes[n].difference.mean for run in summaries]) for n in names},
        diversity_ratio=mean_over_seeds([run.diversity_ratio for run in summaries]),
    )


def summarise_run(folder: Path, until: int | None = None) -> RunSummary:
    """Return the summary of one run; with `until`, as if it had ended at that step.

    Raises:
        EvaluationError: as `summarise`.
    """
    record = read_run(folder, until)
    if not record.comparable:
        found = ", ".join(map(str, record.steps)) or "none"
        raise EvaluationError(
            f"{folder}: comparing needs an evaluation at step 0 and a later one; evaluated steps: {found}. "
            "An unfinished run has its last evaluation still to come; a run without data.validation has none."
        )
    before, after = (Evaluation.load(folder, step, images=False) for step in (0, record.steps[-1]))
    if (before.ids, before.draws) != (after.ids, after.draws):
        raise EvaluationError(f"{folder}: steps 0 and {after.step} were evaluated on different samples or draws")
    names = order_names([n for n in before.values if n in after.values], list(record.trained), record.heldout)
    sources = np.array(before.sources)
    requested = {n: before.requested(n) | after.requested(n) for n in names}
    by_source = {s: sources == s for s in sorted(set(before.sources))}
    return RunSummary(
        name=_name(folder.resolve()),
        folder=folder,
        steps=(0, after.step),
        changes={n: reward_change(before, after, n) for n in names},
        by_source={
            s: {n: reward_change(before, after, n, requested[n] & rows) for n in names if (requested[n] & rows).any()}
            for s, rows in by_source.items()
        },
        diversity=_diversity(record, before, after),
        headline=_headline(record, names),
        tokens=_both(before.mean_tokens, after.mean_tokens),
    )


def order_names(names: Sequence[str], trained: Sequence[str], heldout: Sequence[str]) -> list[str]:
    """Return the total, then trained rewards, other measured ones, and held-out ones."""

    def rank(name: str) -> int:
        return 0 if name == "total" else 1 if name in trained else 3 if name in heldout else 2

    return sorted(names, key=rank)


def render(summary: Summary, by_source: bool = True) -> list[Table]:
    """Return tables for a terminal: rewards by run, over several runs, and by several sources."""
    tables = [_run_table(summary.runs)]
    if len(summary.runs) > 1:
        tables.append(_over_runs_table(summary))
    if by_source and any(len(run.by_source) > 1 for run in summary.runs):
        tables.append(_source_table(summary.runs))
        if len(summary.runs) > 1:
            tables.append(_verdict_table(summary.runs))
        tables[-1].caption, tables[-1].caption_justify = Text(verdict_text(summary.runs)), "left"
    return tables


def verdict_text(runs: Sequence[RunSummary]) -> str:
    """Return the verdicts by source in a sentence: `total by source: 5 up, 3 unsure, none down.`

    Up and down mean that the whole 95 % interval is on that side of 0. With several runs, each source names its run.
    """
    counts = {verdict: sum(len(run.sources_with(verdict)) for run in runs) for verdict in ("up", "unsure")}
    fallen = [
        f"{source} ({run.name})" if len(runs) > 1 else source for run in runs for source in run.sources_with("down")
    ]
    down = f"down: {', '.join(fallen)}" if fallen else "none down"
    return f"{runs[0].headline} by source: {counts['up']} up, {counts['unsure']} unsure, {down}."


def _headline(record: RunRecord, names: Sequence[str]) -> str:
    trained = [name for name in names if record.trained.get(name, 0) != 0]
    return trained[0] if trained and (not record.shows_total or "total" not in names) else "total"


def _name(folder: Path) -> str:
    """Return the name of the folder, with the run's before it if the folder is inside a run."""
    return f"{folder.parent.name}/{folder.name}" if (folder.parent / "config.yaml").is_file() else folder.name


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return names of runs: of folders that share a last part, as many parts as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    names = [_name(Path(*each)) for each in parts]
    apart = []
    for own, name in zip(parts, names, strict=True):
        others = [other for other, its in zip(parts, names, strict=True) if its == name and other != own]
        count = name.count("/") + 1
        while any(other[-count:] == own[-count:] for other in others):
            count += 1
        apart.append("/".join(own[-count:]) if others else name)
    return apart


def _diversity(record: RunRecord, before: Evaluation, after: Evaluation) -> tuple[float, float] | None:
    """Return the diversity that the trainer logged, which may be over more draws, else that of the evaluations."""
    values = [v for v in record.curve("evaluation", "evaluation/diversity").values if math.isfinite(v)]
    if len(values) > 1:
        return values[0], values[-1]
    return _both(before.diversity or None, after.diversity)


def _both(before: float | None, after: float | None) -> tuple[float, float] | None:
    return None if before is None or after is None else (before, after)


def _run_table(runs: Sequence[RunSummary]) -> Table:
    columns = change_columns(change for run in runs for change in run.changes.values())
    table = _table("The same prompts and noise, before and after", ("run", "reward"), columns)
    for run in runs:
        for number, (name, change) in enumerate(run.changes.items()):
            label = f"{run.name} (step {run.steps[1]})" if number == 0 else ""
            table.add_row(Text(label), Text(name), *_cells(change, columns))
        if run.tokens:
            table.add_row("", "length in tokens", *(f"{mean:.1f}" for mean in run.tokens), _times(*run.tokens))
        if run.diversity:
            table.add_row("", "diversity", *(f"{mean:.3f}" for mean in run.diversity), f"x {run.diversity_ratio:.2f}")
        table.add_section()
    return table


def _over_runs_table(summary: Summary) -> Table:
    columns = ("mean", "95 % interval", "lowest", "highest", "runs whose interval is above 0")
    table = _table(f"Differences over {len(summary.runs)} runs", ("reward",), columns)
    for name, mean in summary.over_runs.items():
        each = [run.changes[name].difference for run in summary.runs]
        above = sum(interval.verdict == "up" for interval in each)
        spread = [f"{bound(interval.mean for interval in each):+.3f}" for bound in (min, max)]
        value = Text(f"{mean.mean:+.3f}", COLOURS[mean.verdict])
        table.add_row(Text(name), value, interval_text(mean), *spread, f"{above} of {len(each)}")
    if summary.diversity_ratio.n:
        ratios = [run.diversity_ratio for run in summary.runs if math.isfinite(run.diversity_ratio)]
        spread = [f"x {bound(ratios):.2f}" for bound in (min, max)]
        table.add_row("diversity", f"x {summary.diversity_ratio.mean:.2f}", "", *spread, "")
    return table


def _source_table(runs: Sequence[RunSummary]) -> Table:
    columns = change_columns(change for run in runs for found in run.by_source.values() for change in found.values())
    table = _table("By source", ("run", "source", "reward"), columns)
    for run in runs:
        for source, changes in run.by_source.items():
            for number, (name, change) in enumerate(changes.items()):
                labels = (run.name, source) if number == 0 else ("", "")
                table.add_row(*map(Text, labels), Text(name), *_cells(change, columns))
            table.add_section()
    return table


def _verdict_table(runs: Sequence[RunSummary]) -> Table:
    """Return a table with one line per source: the mean difference, and the number of runs by verdict."""
    table = _table("Verdicts by source", ("source",), ("mean difference", "lowest", "highest", "up", "unsure", "down"))
    for source in dict.fromkeys(source for run in runs for source in run.sources):
        each = [run.sources[source].difference for run in runs if source in run.sources]
        means = [interval.mean for interval in each if math.isfinite(interval.mean)] or [math.nan]
        numbers = [f"{value:+.3f}" for value in (sum(means) / len(means), min(means), max(means))]
        counts = {verdict: sum(interval.verdict == verdict for interval in each) for verdict in COLOURS}
        verdicts = [Text(str(n), COLOURS[v] if n else "dim") for v, n in counts.items()]
        table.add_row(Text(source), *numbers, verdicts[0], verdicts[2], verdicts[1])
    return table


def _table(title: str, labels: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in labels:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def change_columns(changes: Iterable[RewardChange]) -> tuple[str, ...]:
    """Return the heads of `change_texts`; the last, of answers that could not be read, only if there are any."""
    return (*NUMBERS, "malformed") if any(any(change.malformed) for change in changes) else NUMBERS


def change_texts(change: RewardChange, columns: Sequence[str]) -> dict[str, str]:
    """Return the numbers of a change by column; malformed answers as `12 to 3`, before and after."""
    difference = change.difference
    texts = [f"{change.before:.3f}", f"{change.after:.3f}", f"{difference.mean:+.3f}", interval_text(difference)]
    texts += [str(difference.n), str(difference.dropped), "{} to {}".format(*change.malformed)]
    return dict(zip(columns, texts, strict=False))


def _times(before: float, after: float) -> str:
    return f"x {after / before:.2f}" if before else ""


def _cells(change: RewardChange, columns: Sequence[str]) -> list[Text]:
    colour = COLOURS[change.difference.verdict]
    texts = change_texts(change, columns)
    return [Text(text, colour if column == DIFFERENCE else "") for column, text in texts.items()]
