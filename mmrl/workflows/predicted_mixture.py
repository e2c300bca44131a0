"""`mmrl data mixture`: the weights of sources with the best predicted outcome, from runs with other weights.

The method of MoDoMoDo (arXiv:2505.24871): a few runs with different `data.prompts: {name: mixture}`, each evaluated on
the same samples of other tasks, are the data of a quadratic, whose maximum is the mixture of the next run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrl.atomic_io import replace_text
from mmrl.config.controller import WEIGHTS
from mmrl.config.loading.yaml_text import dump_yaml
from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.run_reader import GREEDY, HELDOUT
from mmrl.statistics.mixture_outcomes import MixtureFit, best_mixture, fit_mixtures
from mmrl.training.run.run_folder import load_run

SPLITS = {"validation": "", HELDOUT: HELDOUT, GREEDY: GREEDY}
"""The folder of each set of evaluations inside that of a run."""


@dataclass(frozen=True)
class PredictedMixture:
    """The weights with the best prediction, and the runs that it was fitted to."""

    weights: Mapping[str, float]  # {source: weight}, with the sum 1
    predicted: float  # the outcome with them
    even: float  # the prediction for equal weights
    fit: MixtureFit
    runs: tuple[Path, ...]  # N
    shares: tuple[Mapping[str, float], ...]  # N, each with the sum 1
    outcomes: tuple[float, ...]  # N

    def table(self) -> dict[str, Any]:
        """Return everything as values for YAML, rounded to four digits."""
        names = list(self.weights)
        pairs = {
            f"{first} x {second}": round(float(self.fit.pairs[i, j]), 4)
            for i, first in enumerate(names)
            for j, second in enumerate(names)
            if i < j
        }
        rows = zip(self.runs, self.shares, self.outcomes, self.fit.left_out.tolist(), strict=True)
        return {
            "weights": _rounded(self.weights),
            "predicted": round(self.predicted, 4),
            "predicted_of_equal_weights": round(self.even, 4),
            "leave_one_out_error": round(self.fit.error, 4),
            "leave_one_out_error_of_the_mean": round(self.fit.spread, 4),
            "ridge": float(f"{self.fit.ridge:.4g}"),
            "linear": _rounded(dict(zip(names, self.fit.linear.tolist(), strict=True))),
            "pairs": pairs,
            "runs": [
                {
                    "run": str(run),
                    "weights": _rounded(shares),
                    "outcome": round(outcome, 4),
                    "left_out": round(other, 4),
                }
                for run, shares, outcome, other in rows
            ],
        }

    def write(self, path: Path) -> None:
        """Write the table as YAML."""
        replace_text(path, dump_yaml(self.table()))


def predicted_mixture(
    runs: Sequence[Path],
    metric: str = "total",
    *,
    on: str = "validation",
    sources: Sequence[str] = (),
    ridge: float | None = None,
) -> PredictedMixture:
    """Return the mixture with the best predicted mean of a metric in the last evaluation of a run.

    Args:
        runs: at least three folders of runs with `data.prompts.name: mixture`, with the same sources.
        metric: a reward of the evaluation, or a further score; larger is better.
        on: `validation`, `heldout` or `greedy`.
        sources: only evaluated samples from these sources count; empty: all.
        ridge: the penalty of the fit; None: that with the least leave-one-out error.

    Raises:
        EvaluationError: a run has no mixture or no evaluation after training, runs have other sources or were
            evaluated at other steps or on other samples, the metric is not there, or the fit is not possible.
    """
    if on not in SPLITS:
        raise EvaluationError(f"evaluations are on {on!r}: choose one of {', '.join(SPLITS)}")
    shares = [_shares(run) for run in runs]
    names = sorted(shares[0]) if shares else []
    for run, each in zip(runs, shares, strict=True):
        if sorted(each) != names:
            raise EvaluationError(f"{run} mixes {', '.join(sorted(each))}, and {runs[0]} mixes {', '.join(names)}")
    found = [_last_evaluation(run, on) for run in runs]
    for run, evaluation in zip(runs, found, strict=True):
        if evaluation.ids != found[0].ids or evaluation.step != found[0].step:
            raise EvaluationError(
                f"{run} was evaluated on {len(evaluation.ids)} samples after {evaluation.step} iterations, and "
                f"{runs[0]} on {len(found[0].ids)} after {found[0].step}: only runs of one length with the same "
                "samples can be compared"
            )
    outcomes = [_outcome(run, evaluation, metric, sources) for run, evaluation in zip(runs, found, strict=True)]
    fit = fit_mixtures([[each[name] for name in names] for each in shares], outcomes, ridge)
    best = best_mixture(fit)
    return PredictedMixture(
        dict(zip(names, best.tolist(), strict=True)),
        float(fit.predict(best)),
        float(fit.predict(np.full(len(names), 1 / len(names)))),
        fit,
        tuple(runs),
        tuple({name: each[name] for name in names} for each in shares),
        tuple(outcomes),
    )


def _shares(run: Path) -> dict[str, float]:
    """Return the weights of a run's sources, with the sum 1."""
    data = load_run(run).config.data
    if data.prompts.name != "mixture":
        raise EvaluationError(
            f"{run} was trained with data.prompts.name={data.prompts.name}: a mixture is predicted from runs with "
            "data.prompts='{name: mixture, weights: {...}}'"
        )
    if data.controller is not None and any(key.startswith(WEIGHTS) for key in data.controller.controller().moves):
        raise EvaluationError(f"{run}: {data.controller.name} moved its weights, so that it has no one mixture")
    total = sum(data.prompts.weights.values())
    return {name: weight / total for name, weight in data.prompts.weights.items()}


def _last_evaluation(run: Path, on: str) -> Evaluation:
    folder = run / SPLITS[on]
    steps = evaluation_steps(folder)
    if not steps or steps[-1] == 0:
        raise EvaluationError(f"{run} has no evaluation on {on} after training")
    return Evaluation.load(folder, steps[-1], images=False)


def _outcome(run: Path, evaluation: Evaluation, metric: str, sources: Sequence[str]) -> float:
    """Return the mean over samples of the mean over their scored answers."""
    if metric not in evaluation.values:
        raise EvaluationError(f"{run} has no {metric!r}: it has {', '.join(evaluation.values)}")
    if missing := sorted(set(sources) - set(evaluation.sources)):
        there = ", ".join(sorted(set(evaluation.sources)))
        raise EvaluationError(f"{run} was evaluated on no samples from {missing[0]!r}: there are {there}")
    chosen = evaluation.requested(metric) & np.array([not sources or each in sources for each in evaluation.sources])
    values = evaluation.by_prompt(metric)[chosen]
    means = [row[np.isfinite(row)].mean(dtype=np.float64) for row in values if np.isfinite(row).any()]
    return float(np.mean(means)) if means else float("nan")


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(number, 4) for name, number in numbers.items()}
