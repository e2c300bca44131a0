"""The numbers of a finished arm: one value for each held-out sample, or one for all training iterations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.run_reader import GREEDY, HELDOUT, read_run
from mmrl.statistics.intervals import Floats
from mmrl.studies.study import DecideConfig

DRAWN = "draws/rows"
"""The metric of the answers that an iteration sampled, where samplers draw as many as they need."""
FOLDERS = {"validation": "", "heldout": HELDOUT, "greedy": GREEDY}


@dataclass(frozen=True)
class Measured:
    """Values by id, in order."""

    ids: tuple[str, ...]
    values: Floats  # [len(ids)]; NaN where it could not be scored


def measure(run: Path, decide: DecideConfig, base: bool = False) -> Measured:
    """Return the values that decide, of a run's last evaluation or, with `base`, of the one before training.

    Several answers to a sample count as their mean or as the best of them, or of `of` of them (`draws`), and all
    iterations of training, of which arms may have different numbers, as their mean or by `spike`.

    Raises:
        EvaluationError: the run was not evaluated on these samples, or has no such metric, or drew fewer answers than
            the best is of.
    """
    if decide.on == "training":
        return _of_iterations(run, decide)
    folder = run / FOLDERS[decide.on]
    steps = evaluation_steps(folder)
    if not steps or (base and steps[0] != 0):
        raise EvaluationError(f"{folder} has no evaluation{' before training' if base else ''}: set data.validation, "
                              "data.heldout or evaluation.greedy in the study's `common`")  # fmt: skip
    wanted = steps[:1] if base else steps[-1:] if decide.at == "last" else [step for step in steps if step > 0]
    found = [_of_samples(Evaluation.load(folder, step, images=False), decide, folder) for step in wanted]
    return Measured(found[0].ids, np.mean([each.values for each in found], axis=0))


def measured_before_training(run: Path, decides: Iterable[DecideConfig]) -> bool:
    """Return whether a run has its evaluation before training, which then has every metric measured on samples.

    Raises:
        EvaluationError: the evaluation is there, and has no such metric; training need not go on.
    """
    on_samples = [each for each in decides if each.on != "training"]
    if not all(0 in evaluation_steps(run / FOLDERS[each.on]) for each in on_samples):
        return False
    for each in on_samples:
        measure(run, each, base=True)
    return True


def curve(run: Path, decide: DecideConfig) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return steps and means of the metric over training: its evaluations if there are three, else its iterations."""
    record = read_run(run)
    prefix = {"validation": "", "heldout": f"{HELDOUT}_", "greedy": f"{GREEDY}_", "training": ""}[decide.on]
    evaluated = record.curve("evaluation", f"{prefix}evaluation/{decide.metric}")
    if len(evaluated.steps) >= 3:
        return evaluated.steps, evaluated.values
    name = decide.metric if decide.on == "training" else f"reward/{decide.metric}"
    trained = record.curve("train", name) or record.curve("train", "reward/total")
    return trained.steps, trained.values


def sampled_rows(iterations: Sequence[Mapping[str, Any]], planned: int) -> int:
    """Return the trajectories that training sampled: `planned` in an iteration, or as many as its metrics say.

    >>> sampled_rows([{"draws/rows": 96.0}, {"draws/rows": 64.0}], planned=64), sampled_rows([{}, {}], planned=64)
    (160, 128)
    """
    return int(sum(row.get(DRAWN, planned) for row in iterations))


def spike(values: Sequence[float]) -> float:
    """Return the largest value over the median, NaN left out: 1 where all are equal, on any scale.

    >>> spike([0.5, 0.4, 2.0, 0.5]), spike([50.0, 40.0, 200.0, 50.0])
    (4.0, 4.0)
    """
    return float(np.nanmax(values) / np.nanmedian(values))


def _of_iterations(run: Path, decide: DecideConfig) -> Measured:
    record = read_run(run)
    found = record.curve("train", decide.metric)
    if not found:
        known = ", ".join(record.names("train"))
        raise EvaluationError(f"{run}: no iteration logged {decide.metric}; there are {known}")
    value = spike(found.values) if decide.statistic == "spike" else float(np.nanmean(found.values))
    return Measured(("all iterations",), np.array([value], np.float64))


def _of_samples(evaluation: Evaluation, decide: DecideConfig, folder: Path) -> Measured:
    kept = np.array([not decide.sources or source in decide.sources for source in evaluation.sources], bool)
    values = _drawn(evaluation, decide.metric, folder)
    if not kept.any():
        there = ", ".join(sorted({*evaluation.sources}))
        raise EvaluationError(f"{folder} has no sample from {', '.join(decide.sources)}; there are {there}")
    rows = np.flatnonzero(kept)
    ids, drawn = tuple(evaluation.ids[row] for row in rows), values[rows]
    if decide.beside is not None:
        return Measured(ids, hypervolume(drawn, _drawn(evaluation, decide.beside, folder)[rows]))
    if decide.draws == "mean":
        return Measured(ids, _row_means(drawn))
    count = evaluation.draws if decide.of is None else decide.of
    if count > evaluation.draws:
        raise EvaluationError(
            f"{folder} has {evaluation.draws} answers to a sample, and the best of {count} is measured: set "
            f"evaluation.samples to {count} or more, or `of` to {evaluation.draws} or less"
        )
    return Measured(ids, _row_best(drawn) if decide.of is None else best_of_some(drawn, count))


def _drawn(evaluation: Evaluation, metric: str, folder: Path) -> Floats:  # [P, draws]
    """Return a metric of all draws, or their lengths in tokens.

    Raises:
        EvaluationError: the evaluation has no such metric.
    """
    if metric in evaluation.values:
        return evaluation.by_prompt(metric).astype(np.float64)
    if metric != "tokens" or not evaluation.tokens:
        there = ", ".join([*evaluation.values, "tokens"])
        raise EvaluationError(f"{folder} has no metric {metric}; there are {there}")
    lengths = [np.nan if count is None else float(count) for count in evaluation.tokens]
    return np.array(lengths, np.float64).reshape(-1, evaluation.draws)


def _row_means(values: Floats) -> Floats:  # [P, draws] -> [P]
    scored = np.isfinite(values)
    counts = scored.sum(1)
    sums = np.where(scored, values, 0.0).sum(1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _row_best(values: Floats) -> Floats:  # [P, draws] -> [P]
    best = np.where(np.isfinite(values), values, -np.inf).max(1)
    return np.where(np.isfinite(best), best, np.nan)


def best_of_some(values: Floats, count: int) -> Floats:  # [P, draws], NaN = could not be scored -> [P]
    """Return the mean, over all choices of `count` scored draws of a row, of the best one; NaN where fewer were scored.

    Of n values in ascending order, the i-th is the best of C(i - 1, count - 1) of the C(n, count) choices. For zeros
    and ones it is the unbiased estimate of pass@k, 1 - C(n - right, k) / C(n, k) (arXiv:2107.03374).

    >>> best_of_some(np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 2.0, 4.0, np.nan]]), 2).round(4).tolist()
    [0.8333, 3.3333]
    """
    best = np.full(len(values), np.nan)
    for row, drawn in enumerate(values):
        known = np.sort(drawn[np.isfinite(drawn)])
        if len(known) >= count:
            choices = comb(len(known), count)
            shares = [comb(below, count - 1) / choices for below in range(len(known))]
            best[row] = float(np.dot(shares, known))
    return best


def hypervolume(first: Floats, second: Floats) -> Floats:  # [P, draws] each, NaN = could not be scored -> [P]
    """Return the area above (0, 0) that the draws of a row dominate, by two values; NaN where none has both.

    It is that of the union of the rectangles from (0, 0) to each draw (Zitzler and Thiele, 1998), so draws that others
    dominate add nothing, and values below 0 count as 0.

    >>> hypervolume(np.array([[1.0, 0.5, 0.25, 0.25]]), np.array([[0.0, 0.5, 1.0, 0.75]])).tolist()
    [0.375]
    """
    area = np.full(len(first), np.nan)
    for row, pair in enumerate(np.stack([first, second], -1)):
        points = np.maximum(pair[np.isfinite(pair).all(1)], 0.0)
        if len(points):
            points = points[np.argsort(-points[:, 0])]
            widths = -np.diff(points[:, 0], append=0.0)
            area[row] = float(widths @ np.maximum.accumulate(points[:, 1]))
    return area


def common_samples(measured: Sequence[Measured], arm: str) -> list[int]:
    """Return the rows that every seed could score.

    Raises:
        EvaluationError: the seeds have different samples.
    """
    if len({each.ids for each in measured}) > 1:
        raise EvaluationError(f"{arm}: its runs were evaluated on different samples")
    scored = np.isfinite([each.values for each in measured]).all(axis=0)
    return np.flatnonzero(scored).tolist()
