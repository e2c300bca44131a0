"""`mmrl data select`: keep the prompts whose answers differ most in reward over repeated inference.

Temporal-R1 (arXiv:2506.01908) answers each prompt several times before training and keeps those with the largest
variance of rewards: answers that are all alike in reward have no advantages, however good they are. With graded
rewards, such as an IoU, this also ranks prompts that no answer solves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.workflows.answered_prompts import answered_prompts


@dataclass(frozen=True)
class VariedPrompts:
    """The samples that were kept, in their order, and the variance of every prompt."""

    kept: Sequence[Sample]
    variances: Mapping[str, float]  # {id: variance of the total rewards}; NaN: fewer than two could be scored


def varied_prompts(config: TrainConfig, answers: int, share: float) -> VariedPrompts:
    """Answer each prompt of `data.path` before any training, and keep the share with the largest variance of rewards.

    Args:
        config: a run that samples answers.
        answers: to each prompt, 2 or more.
        share: of the prompts that are kept, in (0, 1]. Those whose rewards are all equal are never kept, so fewer stay
            where others do not suffice.

    Raises:
        ConfigError: `answers` or `share` is out of its range, or no prompt has rewards that differ.
        DataError: a sample cannot be read.
    """
    if answers < 2 or not 0 < share <= 1:
        raise ConfigError(
            f"--answers is {answers} and --share {share:g}: a variance needs 2 answers or more, and the share of "
            "prompts that stay is above 0 and at most 1"
        )
    answered = answered_prompts(config, answers)
    loaded, variances = answered.samples, reward_variances(answered.totals)
    count = max(1, round(share * len(loaded)))
    best = np.argsort(-np.nan_to_num(variances, nan=0.0), kind="stable")[:count]
    kept = sorted(place for place in best.tolist() if variances[place] > 0)
    if not kept:
        raise ConfigError(
            f"{config.data.path}: the rewards of no prompt differ between its answers: choose more --answers, a higher "
            "sampling.temperature, or a graded reward"
        )
    ids = [sample.id for sample in loaded]
    return VariedPrompts([loaded[place] for place in kept], dict(zip(ids, variances.tolist(), strict=True)))


def reward_variances(totals: NDArray[np.float32]) -> NDArray[np.float64]:  # [P, A] -> [P]
    """Return the variance of each prompt's rewards, the mean squared distance from their mean.

    Rewards that are NaN could not be scored and do not count; fewer than two others give NaN.

    >>> reward_variances(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32)).tolist()
    [0.25, 0.0]
    """
    values = totals.astype(np.float64)
    scored = np.isfinite(values)
    counts = scored.sum(axis=1)
    known = np.where(scored, values, 0.0)
    means = known.sum(axis=1) / np.maximum(counts, 1)
    squares = np.where(scored, (values - means[:, None]) ** 2, 0.0).sum(axis=1)
    found: NDArray[np.float64] = np.where(counts >= 2, squares / np.maximum(counts, 1), np.nan)
    return found
