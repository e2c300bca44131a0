"""Did training help: paired differences between the first and the last evaluation, in each run and over runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from mmrl.evaluation.errors import EvaluationError
from mmrl.evaluation.paired import Interval, mean_over_seeds, paired_difference, paired_means
from mmrl.evaluation.records import RunRecord, read_run
from mmrl.evaluation.results import Evaluation

COLOURS = {"up": "green", "down": "red", "unsure": "default"}


@dataclass(frozen=True)
class Change:
    """One reward on the same prompts and noise; all three numbers are over the pairs that could be scored."""

    before: float
    after: float
    difference: Interval


@dataclass(frozen=True)
class RunSummary:
    """What one run changed."""

    name: str
    folder: Path
    steps: tuple[int, int]  # of the evaluations that are compared
    changes: dict[str, Change]  # by reward
    by_source: dict[str, dict[str, Change]]  # by source, then reward
    diversity: tuple[float, float] | None  # before, after; None where the run did not measure it

    @property
    def diversity_ratio(self) -> float:
        """After / before; NaN where unknown."""
        return self.diversity[1] / self.diversity[0] if self.diversity and self.diversity[0] > 0 else math.nan


@dataclass(frozen=True)
class Summary:
    """What several runs changed, as a rule runs of one recipe with different seeds."""

    runs: tuple[RunSummary, ...]
    over_runs: dict[str, Interval]  # {reward: mean over runs of the run's mean difference}
    diversity_ratio: Interval


def summarise(runs: Sequence[Path]) -> Summary:
    """Compare each run's first evaluation, step 0, with its last.

    Raises:
        EvaluationError: a folder is no run, has no evaluation at step 0 or no later one, or the two do not hold the
            same samples.
    """
    if not runs:
        raise EvaluationError("there is no run to summarise")
    summaries = tuple(summarise_run(Path(folder)) for folder in runs)
    names = [name for name in summaries[0].changes if all(name in run.changes for run in summaries)]
    return Summary(
        runs=summaries,
        over_runs={n: mean_over_seeds([run.changes[n].difference.mean for run in summaries]) for n in names},
        diversity_ratio=mean_over_seeds([run.diversity_ratio for run in summaries]),
    )


def summarise_run(folder: Path) -> RunSummary:
    """As `summarise`, for one run."""
    record = read_run(folder)
    if not record.comparable:
        found = ", ".join(map(str, record.steps)) or "none"
        raise EvaluationError(
            f"{folder}: comparing needs an evaluation at step 0 and a later one; evaluated steps: {found}. "
            "An unfinished run has its last evaluation still to come; a run without data.validation has none."
        )
    before, after = (Evaluation.load(folder, step, images=False) for step in (0, record.steps[-1]))
    if (before.ids, before.draws) != (after.ids, after.draws):
        raise EvaluationError(f"{folder}: steps 0 and {after.step} were evaluated on different samples or draws")
    names = order_names([n for n in before.values if n in after.values], list(record.trained), record.watched)
    sources = np.array(before.sources)
    every = np.ones(len(sources), bool)
    by_source = {s: sources == s for s in sorted(set(before.sources))}
    return RunSummary(
        name=_name(folder.resolve()),
        folder=folder,
        steps=(0, after.step),
        changes={n: _change(before, after, n, every) for n in names},
        by_source={s: {n: _change(before, after, n, rows) for n in names} for s, rows in by_source.items()},
        diversity=_diversity(record, before, after),
    )


def order_names(names: Sequence[str], trained: Sequence[str], watched: Sequence[str]) -> list[str]:
    """The total, what was trained on, what was measured besides, what was held out."""

    def rank(name: str) -> int:
        return 0 if name == "total" else 1 if name in trained else 3 if name in watched else 2

    return sorted(names, key=rank)


def render(summary: Summary, by_source: bool = True) -> list[Table]:
    """Tables for a terminal: rewards by run, over runs where there are several, by source where there are several."""
    tables = [_run_table(summary.runs)]
    if len(summary.runs) > 1:
        tables.append(_over_runs_table(summary))
    if by_source and any(len(run.by_source) > 1 for run in summary.runs):
        tables.append(_source_table(summary.runs))
    return tables


def _change(before: Evaluation, after: Evaluation, name: str, samples: np.ndarray) -> Change:
    pair = before.by_prompt(name)[samples], after.by_prompt(name)[samples]
    first, last, _ = paired_means(*pair)
    before_mean, after_mean = (float(values.mean()) if values.size else math.nan for values in (first, last))
    return Change(before_mean, after_mean, paired_difference(*pair))


def _name(folder: Path) -> str:
    """The folder's; with the run's before it where the folder is inside a run."""
    return f"{folder.parent.name}/{folder.name}" if (folder.parent / "config.yaml").is_file() else folder.name


def _diversity(record: RunRecord, before: Evaluation, after: Evaluation) -> tuple[float, float] | None:
    """As the trainer logged it, which may be over more draws than the evaluations hold; else theirs."""
    values = [v for v in record.curve("evaluation", "evaluation/diversity").values if math.isfinite(v)]
    if len(values) > 1:
        return values[0], values[-1]
    return (before.diversity, after.diversity) if before.diversity and after.diversity is not None else None


def _run_table(runs: Sequence[RunSummary]) -> Table:
    table = Table(title="The same prompts and noise, before and after", title_justify="left")
    for column in ("run", "reward"):
        table.add_column(column)
    for column in ("base", "trained", "difference", "95 % interval", "prompts", "not scored"):
        table.add_column(column, justify="right")
    for run in runs:
        for number, (name, change) in enumerate(run.changes.items()):
            label = f"{run.name} (step {run.steps[1]})" if number == 0 else ""
            table.add_row(Text(label), Text(name), *_cells(change))
        if run.diversity:
            ratio = Text(f"x {run.diversity_ratio:.2f}")
            table.add_row("", "diversity", f"{run.diversity[0]:.3f}", f"{run.diversity[1]:.3f}", ratio, "", "", "")
        table.add_section()
    return table


def _over_runs_table(summary: Summary) -> Table:
    table = Table(title=f"Differences over {len(summary.runs)} runs", title_justify="left")
    table.add_column("reward")
    for column in ("mean", "95 % interval", "lowest", "highest", "runs whose interval is above 0"):
        table.add_column(column, justify="right")
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
    table = Table(title="By source", title_justify="left")
    for column in ("run", "source", "reward"):
        table.add_column(column)
    for column in ("base", "trained", "difference", "95 % interval", "prompts", "not scored"):
        table.add_column(column, justify="right")
    for run in runs:
        for source, changes in run.by_source.items():
            for number, (name, change) in enumerate(changes.items()):
                labels = (run.name, source) if number == 0 else ("", "")
                table.add_row(*map(Text, labels), Text(name), *_cells(change))
            table.add_section()
    return table


def _cells(change: Change) -> list[str | Text]:
    difference = change.difference
    return [
        f"{change.before:.3f}",
        f"{change.after:.3f}",
        Text(f"{difference.mean:+.3f}", COLOURS[difference.verdict]),
        interval_text(difference),
        str(difference.n),
        str(difference.dropped),
    ]


def interval_text(interval: Interval) -> str:
    """`+0.101 to +0.230`, or why there is none."""
    return f"{interval.low:+.3f} to {interval.high:+.3f}" if interval.n > 1 else "needs two or more"
