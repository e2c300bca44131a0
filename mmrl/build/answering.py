"""The sampler of answers: the policy of a run, or a chain of it and the painter that draws its texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmrl.build.policies import without_exploration
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.drawn_texts import JointGRPOConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.named_models import sampling_of
from mmrl.config.sampling import AnySamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.training.named_model import NamedModel
from mmrl.training.rollouts.drawn_texts import DrawnTexts


def painter_of(algorithm: AlgorithmConfig) -> str | None:
    """Return the name of the model that draws the policy's texts; None: answers are the policy's own."""
    return algorithm.painter if isinstance(algorithm, JointGRPOConfig) else None


def answering(
    algorithm: AlgorithmConfig,
    policy: Any,
    models: Mapping[str, NamedModel] | None,
    sampling: AnySamplingConfig | None = None,
    original_prompt: float = 0.0,
) -> Any:
    """Return what samples the answers that are scored: the policy, or a chain of it and the painter of its texts.

    `sampling` is that of the painter; None: as it is trained. `original_prompt` is the share of the user's prompt in
    its guidance.
    """
    if not isinstance(algorithm, JointGRPOConfig) or models is None:
        return policy
    guarded = isinstance(algorithm.picture, PolicyGradientConfig) and algorithm.picture.ratio == "guard"
    reader = algorithm.reader.reader("algorithm.reader")
    return DrawnTexts(policy, models[algorithm.painter], reader, sampling, guarded, original_prompt)


def answering_without_exploration(config: TrainConfig, policy: Any, models: Mapping[str, NamedModel]) -> Any:
    """Return what answers in evaluations: the policy, or a chain of it and the painter of its texts."""
    painter = painter_of(config.algorithm)
    sampling = None if painter is None else without_exploration(sampling_of(config, painter))
    return answering(config.algorithm, policy, models, sampling, config.evaluation.original_prompt)
