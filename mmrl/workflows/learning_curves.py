"""`mmrl data align`: keep the prompts whose rewards rose as those of all prompts did (LIMR, arXiv:2502.11886).

A prompt that is always or never solved has a flat curve and teaches little; one that follows the mean of all curves is
learnt when the policy learns. The curves are those of a run that was evaluated on its own training prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmrl.build.datasets import load_samples
from mmrl.data.sample import Sample
from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.training.run.run_folder import load_run

FEWEST = 3
"""Evaluations that make a curve."""


@dataclass(frozen=True)
class AlignedPrompts:
    """The samples that were kept, in their order, and the alignment of every prompt."""

    kept: Sequence[Sample]
    scores: dict[str, float]  # {id: alignment, at most 1}; NaN: an answer could not be scored


def aligned_prompts(run: Path, share: float) -> AlignedPrompts:
    """Return the share of a run's validation prompts whose reward curves are nearest to the mean curve.

    Args:
        run: a folder of a run with `data.validation` set to the prompts to choose from, and `evaluation.every`.
        share: of the prompts that are kept, in (0, 1].

    Raises:
        EvaluationError: there are fewer than three evaluations, or every prompt was always solved.
    """
    if not 0 < share <= 1:
        raise EvaluationError(f"the share of prompts is {share:g}: choose a number above 0 and at most 1")
    steps = evaluation_steps(run)
    if len(steps) < FEWEST:
        raise EvaluationError(
            f"{run} has {len(steps)} evaluations, and a curve has at least {FEWEST}: train with data.validation set to "
            "the training prompts, and evaluation.every"
        )
    found = [Evaluation.load(run, step, images=False) for step in steps]
    if len({each.ids for each in found}) > 1:
        raise EvaluationError(f"{run}: its evaluations are of different prompts")
    curves = np.stack([each.by_prompt(TOTAL).mean(axis=1) for each in found], axis=1).astype(np.float64)
    scores = curve_alignment(curves)
    count = max(1, round(share * len(scores)))
    best = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:count]
    kept = {found[0].ids[place] for place in best if np.isfinite(scores[place])}
    data = load_run(run).config.data
    samples = load_samples(data.validation or data.path)
    return AlignedPrompts(
        [sample for sample in samples if sample.id in kept], dict(zip(found[0].ids, scores.tolist(), strict=True))
    )


def curve_alignment(curves: NDArray[np.float64]) -> NDArray[np.float64]:  # [P, K] -> [P]
    """Return 1 - sum_k (curve - mean)^2 / sum_k (1 - mean)^2 for each of P curves with K rewards of at most 1.

    1 is the mean curve itself. The mean is over all curves without a NaN; one with a NaN is not aligned, but NaN.

    Raises:
        EvaluationError: every reward is 1, so that nothing was learnt.

    >>> curve_alignment(np.array([[0.0, 1.0], [0.0, 0.0]])).tolist()
    [0.8, 0.8]
    """
    known = np.isfinite(curves).all(axis=1)
    if not known.any():
        raise EvaluationError("no prompt could be scored in every evaluation")
    mean = curves[known].mean(axis=0)
    room = ((1 - mean) ** 2).sum()
    if room == 0:
        raise EvaluationError("every prompt was solved in every evaluation: there is nothing to choose by")
    aligned: NDArray[np.float64] = 1 - ((curves - mean) ** 2).sum(axis=1) / room
    return aligned
