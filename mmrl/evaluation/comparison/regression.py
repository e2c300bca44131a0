"""Two results of comparisons side by side, to find metrics that became worse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mmrl.benchmarks.protocol import MetricConfig
from mmrl.errors import ResultError
from mmrl.evaluation.comparison.estimates import (
    TIE,
    Answers,
    Estimate,
    MeasuredMetric,
    MetricDifference,
    Number,
    difference,
)
from mmrl.evaluation.comparison.result import MetricInfo, Result, SubjectResult, read_result
from mmrl.evaluation.comparison.store import SubjectStore

RegressionVerdict = Literal["better", "worse", "regression", "unsure"]


@dataclass(frozen=True)
class MetricChange:
    """A metric of one subject in both results; `difference` is second - first."""

    subject: str
    label: str
    before: Number
    after: Number
    difference: Number
    low: Number
    high: Number
    samples: int  # that were paired; 0: none were, and the interval is that of two independent numbers
    dropped: int  # rows of paired samples that were not scored in both
    direction: Literal["higher", "lower"]
    verdict: RegressionVerdict


@dataclass(frozen=True)
class Diff:
    """The differences between two results."""

    first: str
    second: str
    tolerance: float
    changes: tuple[MetricChange, ...]
    only_first: tuple[str, ...]  # subjects, and metrics of subjects, that are in one result only
    only_second: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> list[MetricChange]:
        """The changes whose whole interval is worse than the tolerance."""
        return [change for change in self.changes if change.verdict == "regression"]


@dataclass
class _Side:
    path: Path
    result: Result
    folder: Path | None = field(init=False)  # None: the rows are not available

    def __post_init__(self) -> None:
        folder = self.path if self.path.is_dir() else self.path.parent
        self.folder = folder if (folder / "rows").is_dir() else None

    def answers(self, subject: SubjectResult) -> Answers | None:
        """Return the subject's rows; None if they were not kept."""
        if self.folder is None:
            return None
        store = SubjectStore(self.folder, subject.file)
        return store.answers(draws=subject.draws) if store.rows_path.is_file() else None


def diff_results(first: Path, second: Path, tolerance: float = 0.0, seed: int = 0) -> Diff:
    """Compare every metric of every subject that both results have.

    Samples of which both have rows, by id and prompt, are paired, draw by draw. Without rows, the interval is that of
    the difference of two independent numbers, which is wider.

    Raises:
        ResultError: a result cannot be read, or the two have nothing in common.
    """
    one, other = _Side(first, read_result(first)), _Side(second, read_result(second))
    pairs, notes = _pairs(one.result, other.result)
    if not pairs:
        names = [", ".join(side.result.subjects) or "none" for side in (one, other)]
        raise ResultError(f"{first} and {second} have no subject in common: {names[0]}; {names[1]}")
    notes += _settings_that_differ(one.result.settings, other.result.settings)
    changes = [change for pair in pairs for change in _changes(one, other, *pair, tolerance, seed, notes)]
    if not changes:
        raise ResultError(f"{first} and {second} have no metric in common")
    swapped = [(its, mine) for mine, its in pairs]
    return Diff(
        first=str(first),
        second=str(second),
        tolerance=tolerance,
        changes=tuple(changes),
        only_first=_only(one.result, other.result, pairs),
        only_second=_only(other.result, one.result, swapped),
        notes=tuple(notes),
    )


def regression_verdict(
    low: float, high: float, tolerance: float, direction: Literal["higher", "lower"] = "higher"
) -> RegressionVerdict:
    """Return `regression` if the whole interval is worse than -tolerance, `worse` or `better` if it excludes 0."""
    low, high = (low, high) if direction == "higher" else (-high, -low)
    if high < -max(tolerance, TIE):  # a tie is no regression
        return "regression"
    return "worse" if high < 0 else "better" if low > 0 else "unsure"


def _only(one: Result, other: Result, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the subjects of one result, and the metrics of its subjects, that the other lacks."""
    used = dict(pairs)
    labels = [
        f"{mine}: {label}"
        for mine, its in pairs
        for label in one.subjects[mine].numbers
        if label not in other.subjects[its].numbers
    ]
    return (*(name for name in one.subjects if name not in used), *labels)


def _pairs(one: Result, other: Result) -> tuple[list[tuple[str, str]], list[str]]:
    """Pair subjects of equal names; where each result has one trained subject, pair those two as well."""
    pairs = [(name, name) for name in one.subjects if name in other.subjects]
    trained = [[n for n, s in side.subjects.items() if s.checkpoint is not None] for side in (one, other)]
    single = [names[0] for names in trained if len(names) == 1]
    if len(single) == 2 and single[0] != single[1]:
        note = f"{single[1]} is compared with {single[0]}: each is the one trained there"
        return [*pairs, (single[0], single[1])], [note]
    return pairs, []


def _changes(
    one: _Side, other: _Side, mine: str, its: str, tolerance: float, seed: int, notes: list[str]
) -> Iterator[MetricChange]:
    before, after = one.result.subjects[mine], other.result.subjects[its]
    rows = _paired(one.answers(before), other.answers(after))
    if rows is not None and (lost := min(before.samples, after.samples) - len(rows[0])) > 0:
        notes.append(f"{its}: {lost} samples are in one result only, or have other prompts, and are left out")
    elif rows is None:
        notes.append(f"{its}: no rows of the same samples are available, so nothing is paired and intervals are wide")
    metrics = {metric.label: metric for metric in one.result.metrics}
    theirs = {metric.label: metric for metric in other.result.metrics}
    for label in before.numbers:
        if label not in after.numbers:
            continue
        if metrics[label].config != theirs[label].config:
            notes.append(f"{label} is not computed in the same way in both, and left out")
            continue
        change = _paired_change(rows, metrics[label], seed) if rows else None
        number = (before.numbers[label], after.numbers[label])
        if change is None:
            low, high = _independent(*number)
            change = MetricDifference(number[1].value - number[0].value, low, high, 0, 0, 0, 0)
        yield MetricChange(
            subject=mine if mine == its else f"{mine} → {its}",
            label=label,
            before=number[0].value,
            after=number[1].value,
            difference=change.value,
            low=change.low,
            high=change.high,
            samples=change.samples,
            dropped=change.dropped,
            direction=metrics[label].direction,
            verdict=regression_verdict(change.low, change.high, tolerance, metrics[label].direction),
        )


def _paired_change(rows: tuple[Answers, Answers], metric: MetricInfo, seed: int) -> MetricDifference | None:
    config = MetricConfig.model_validate(metric.config)
    found = difference(MeasuredMetric(config, rows[0]), MeasuredMetric(config, rows[1]), seed)
    return found if found.samples else None


def _paired(one: Answers | None, other: Answers | None) -> tuple[Answers, Answers] | None:
    """Return the rows of the samples that both have, by id and prompt, in the order of the first."""
    if one is None or other is None:
        return None
    draws = min(one.draws, other.draws)
    places = {_key(other, n): n for n in range(len(other))}
    shared = [(n, places[key]) for n in range(len(one)) if (key := _key(one, n)) in places]
    if not shared:
        return None
    return _rows(one, [n for n, _ in shared], draws), _rows(other, [n for _, n in shared], draws)


def _key(answers: Answers, number: int) -> tuple[str, str, str]:
    sample = answers.rows[number * answers.draws].sample
    return sample.id, sample.prompt, str(sample.messages)


def _rows(answers: Answers, samples: Sequence[int], draws: int) -> Answers:
    return Answers([answers.rows[n * answers.draws + draw] for n in samples for draw in range(draws)], draws)


def _independent(before: Estimate, after: Estimate) -> tuple[float, float]:
    """Return the interval of a difference of two independent numbers: their deviations add up in squares."""
    change = after.value - before.value
    down = math.hypot(after.value - after.low, before.high - before.value)
    up = math.hypot(after.high - after.value, before.value - before.low)
    return change - down, change + up


def _settings_that_differ(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    differing = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
    return [f"the two were not made with the same settings: {', '.join(differing)} differ"] if differing else []
