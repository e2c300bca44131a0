"""`mmrl data filter`: keep the prompts of a data set that a policy solves sometimes, neither never nor always.

Groups of such prompts have advantages; the answers to all others cost as much and teach nothing (ARPO,
arXiv:2505.16282, which trains on the tasks that its base solved at least once in 16 attempts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.build.reward_suites import build_rewards, replace_named_rewards
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.evaluation.evaluate import evaluate
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import SharedLoader


@dataclass(frozen=True)
class FilteredPrompts:
    """The samples that were kept, and the numbers of those that were not."""

    kept: Sequence[Sample]  # as they were in the data set
    rates: Mapping[str, float]  # {id: share of answers with a total of at least `success`}; NaN: none could be scored
    never: int  # at or below the lower bound
    always: int  # at or above the upper bound
    unscored: int


def filter_prompts(
    config: TrainConfig,
    answers: int,  # to each prompt
    success: float = 1.0,  # an answer with a total of at least this is good
    above: float = 0.0,  # share of good answers, exclusive
    below: float = 1.0,  # exclusive
) -> FilteredPrompts:
    """Answer each prompt of `data.path` as in training, before any training, and keep those within the bounds.

    Raises:
        ConfigError: the run samples no answers, or nothing lies within the bounds.
        DataError: a sample cannot be read.
    """
    if config.algorithm.experience != "rollouts":
        raise ConfigError(f"algorithm: {config.algorithm.name} samples no answers: choose grpo to filter with")
    if not above < below:
        raise ConfigError(f"--above is {above:g}, --below is {below:g}: nothing lies between them")
    loaded = load_samples(config.data.path, config.media)
    policy = build_policy(config.policy, config.sampling, config.media, config.environment)
    named = replace_named_rewards(loaded, config.scoring)
    samples = prepare_samples(policy, config.policy, config.answers, config.sampling, named)
    rates: dict[str, float] = {}
    rows = BatchPlan.of(config).micro_batch
    size = max(1, rows // answers)
    with closing(build_rewards(config, samples, SharedLoader())) as suite:
        for first in range(0, len(samples), size):
            part = samples[first : first + size]
            found = evaluate(policy, part, suite, draws=answers, batch=rows, seed=config.seed + first, pictures=0)
            rates |= dict(zip(found.ids, success_rates(found.by_prompt(TOTAL), success), strict=True))
    values = np.array([rates[sample.id] for sample in loaded])
    within = (values > above) & (values < below)
    if not within.any():
        raise ConfigError(
            f"{config.data.path}: of no prompt is the share of good answers above {above:g} and below {below:g}: "
            "choose wider bounds, more --answers, or a lower --success"
        )
    return FilteredPrompts(
        kept=[sample for sample, keep in zip(loaded, within, strict=True) if keep],
        rates=rates,
        never=int((values <= above).sum()),
        always=int((values >= below).sum()),
        unscored=int(np.isnan(values).sum()),
    )


def success_rates(totals: NDArray[np.float32], success: float) -> list[float]:
    """Return the share of good answers of each prompt; answers that could not be scored do not count.

    >>> success_rates(np.array([[1.0, 0.0], [1.0, np.nan], [np.nan, np.nan]]), 1.0)
    [0.5, 1.0, nan]
    """
    scored = np.isfinite(totals)
    good = (scored & (np.nan_to_num(totals, nan=-np.inf) >= success)).sum(axis=1)
    counts = scored.sum(axis=1)
    return [float(n) / int(count) if count else float("nan") for n, count in zip(good, counts, strict=True)]
