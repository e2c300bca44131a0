"""The answers of a policy to the prompts of a data set before any training, by which `mmrl data` chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
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
class AnsweredPrompts:
    """P prompts with A answers each, and their rewards."""

    samples: Sequence[Sample]  # P, as they were in the data set
    totals: NDArray[np.float32]  # [P, A] total rewards; NaN: not scored
    texts: Sequence[Sequence[str | None]]  # P of A answers; None: a picture


def answered_prompts(
    config: TrainConfig,
    answers: int,  # to each prompt
) -> AnsweredPrompts:
    """Answer each prompt of `data.path` as in training, before any training, and score the answers.

    Raises:
        ConfigError: the run samples no answers.
        DataError: a sample cannot be read.
    """
    if config.algorithm.experience != "rollouts":
        raise ConfigError(f"algorithm: {config.algorithm.name} samples no answers: choose grpo to answer prompts with")
    loaded = load_samples(config.data.path, config.media)
    policy = build_policy(config.policy, config.sampling, config.media, config.environment)
    named = replace_named_rewards(loaded, config.scoring)
    samples = prepare_samples(policy, config.policy, config.answers, config.sampling, named)
    totals: dict[str, NDArray[np.float32]] = {}
    texts: dict[str, tuple[str | None, ...]] = {}
    rows = BatchPlan.of(config).micro_batch
    size = max(1, rows // answers)
    calls = -(-answers // rows)  # of each part, every one with a seed
    with closing(build_rewards(config, samples, SharedLoader())) as suite:
        for first in range(0, len(samples), size):
            part = samples[first : first + size]
            found = evaluate(
                policy, part, suite, draws=answers, batch=rows, seed=config.seed + first * calls, pictures=0
            )
            totals |= dict(zip(found.ids, found.by_prompt(TOTAL), strict=True))
            texts |= {
                id: tuple(found.answer(place, draw) for draw in range(answers)) for place, id in enumerate(found.ids)
            }
    return AnsweredPrompts(
        samples=loaded,
        totals=np.array([totals[sample.id] for sample in loaded], np.float32),
        texts=[texts[sample.id] for sample in loaded],
    )
