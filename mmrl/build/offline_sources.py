"""Build the sources of experience that samples contain: demonstrations, pairs, true pictures, and stored answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.build.reward_suites import Rewards
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.decoder_turns import ReconstructionConfig
from mmrl.config.algorithms.stored_answers import ALoLConfig
from mmrl.config.train import TrainConfig
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.training.experience import ExperienceSource
from mmrl.training.rollouts.offline import Demonstrations, PreferencePairs, check_answers
from mmrl.training.rollouts.stored_answers import StoredAnswers
from mmrl.training.rollouts.true_pictures import TruePictures, check_pictures


def build_offline_source(
    config: TrainConfig, algorithm: AlgorithmConfig, policy: Any, samples: Sequence[Sample], prompts: PromptSource
) -> ExperienceSource:
    """Return a source of the answers that samples contain, with as many rows as there are groups of rollouts."""
    data, experience, axis = config.data, algorithm.experience, getattr(algorithm, "axis", None)
    if isinstance(algorithm, ReconstructionConfig):
        check_pictures(samples)
        return TruePictures(prompts, min(data.groups, data.micro_batch or data.groups))
    check_answers(samples, experience, policy, axis)
    rows = data.groups * (2 if experience == "pairs" else 1)
    micro_batch = min(rows, data.micro_batch or rows)
    if experience == "pairs":
        return PreferencePairs(policy, prompts, micro_batch, axis)
    return Demonstrations(policy, prompts, micro_batch, config.seed)


def build_stored_answers(
    config: TrainConfig,
    algorithm: ALoLConfig,
    policy: Any,
    samples: Sequence[Sample],
    rewards: Rewards,
    models: Mapping[str, Any],
) -> StoredAnswers:
    """Return a source of the answers that samples contain, scored by the run's rewards."""
    data = config.data
    check_answers(samples, "demonstrations", policy)
    return StoredAnswers(
        policy=policy,
        samples=samples,
        suite=rewards,
        rows=data.groups,
        micro_batch=min(data.groups, data.micro_batch or data.groups),
        seed=config.seed,
        values=algorithm.values,
        negatives=algorithm.negatives,
        draw=algorithm.draw,
        models=models,
    )
