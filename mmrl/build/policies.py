"""The model that a configuration names, and what it must be asked before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from mmrl.config.answers import AnswersConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig, VLMConfig
from mmrl.config.sampling import (
    AnySamplingConfig,
    BranchConfig,
    ImageTokenSamplingConfig,
    SamplingConfig,
    TokenSamplingConfig,
    TransitionConfig,
    WindowConfig,
)
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.generation.image_tokens import ImageTokenPolicy
    from mmrl.generation.memory.memory_report import MemoryEstimate
    from mmrl.understanding.vlm_policy import VLMPolicy

P = TypeVar("P", PolicyConfig, VLMConfig, ImageTokenConfig)
AnyPolicy: TypeAlias = "PipelinePolicy | VLMPolicy | ImageTokenPolicy"


def policy_class(policy: AnyPolicyConfig) -> type[PipelinePolicy] | type[VLMPolicy] | type[ImageTokenPolicy]:
    """The class of a policy; no model is loaded. Each kind loads its own libraries alone."""
    if isinstance(policy, VLMConfig):
        from mmrl.understanding.vlm_policy import VLMPolicy

        return VLMPolicy
    if isinstance(policy, ImageTokenConfig):
        from mmrl.generation.image_tokens import ImageTokenPolicy

        return ImageTokenPolicy
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

    return PipelinePolicy


def build_policy(policy: AnyPolicyConfig, sampling: AnySamplingConfig, media: MediaConfig | None = None) -> AnyPolicy:
    """Load the model that a configuration names."""
    if isinstance(policy, VLMConfig) and isinstance(sampling, TokenSamplingConfig):
        from mmrl.understanding.vlm_policy import VLMPolicy

        return VLMPolicy.from_config(resolve_model_path(policy), sampling, media)
    if isinstance(policy, PolicyConfig) and isinstance(sampling, SamplingConfig):
        from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

        return PipelinePolicy.from_config(resolve_model_path(policy), sampling)
    if isinstance(policy, ImageTokenConfig) and isinstance(sampling, ImageTokenSamplingConfig):
        from mmrl.generation.image_tokens import ImageTokenPolicy

        return ImageTokenPolicy.from_config(resolve_model_path(policy), sampling)
    raise ConfigError(f"sampling.kind: {sampling.kind} is not how a policy of kind {policy.kind} samples")


def prepare_samples(policy: AnyPolicy, config: TrainConfig, samples: Sequence[Sample]) -> list[Sample]:
    """The samples as the policy of a run takes them: see `fit_to`."""
    return fit_to(policy, config.policy, config.answers, config.sampling, samples)


def fit_to(
    policy: AnyPolicy,
    config: AnyPolicyConfig,
    answers: AnswersConfig,
    sampling: AnySamplingConfig,
    samples: Sequence[Sample],
) -> list[Sample]:
    """The samples as the policy takes them: refused where it cannot, completed by their tasks.

    Raises:
        ConfigError, DataError: naming the sample that the policy cannot take, and why.
    """
    fitted = list(samples)
    if isinstance(config, VLMConfig):
        from mmrl.understanding.tasks.definitions import apply_tasks

        return apply_tasks(cast("VLMPolicy", policy), fitted, answers.thinking, answers.space, answers.task)
    if isinstance(config, ImageTokenConfig):
        for sample in fitted:
            cast("ImageTokenPolicy", policy).check_sample(sample)
        return fitted
    from mmrl.generation.diffusion.call_arguments import check_samples, warn_truncated_prompts

    pipeline = cast("PipelinePolicy", policy).pipeline
    check_samples(pipeline, fitted)
    warn_truncated_prompts(pipeline, cast(SamplingConfig, sampling), fitted)
    return fitted


def without_exploration(sampling: AnySamplingConfig) -> AnySamplingConfig:
    """How a policy is looked at: denoising along the ODE, tokens as they are trained."""
    if isinstance(sampling, TokenSamplingConfig | ImageTokenSamplingConfig):
        return sampling
    still = {"transition": TransitionConfig(), "window": WindowConfig(), "branch": BranchConfig()}
    return sampling.model_copy(update=still)


def estimate_memory(config: TrainConfig) -> MemoryEstimate:
    """What a generator's run holds in memory, from the configuration files of its model."""
    from mmrl.generation.memory import estimate
    from mmrl.generation.memory.architecture import find_architecture

    policy = resolve_model_path(config.drawing()[0])
    return estimate.estimate_memory(config, find_architecture(policy.model, policy.revision))


def resolve_model_path(policy: P) -> P:
    """`shapeworld` and `shapeworld:NAME` are models in the package.

    Raises:
        ConfigError: none of that name ships.
    """
    from mmrl_shapeworld import shipped_models

    if not shipped_models.is_shipped(policy.model):
        return policy
    if policy.kind == "vlm" and policy.model == shipped_models.PREFIX:
        from mmrl_shapeworld import vlm_model

        return policy.model_copy(update={"model": str(vlm_model.VLM)})
    if policy.kind == "image_tokens" and policy.model == shipped_models.PREFIX:
        return policy.model_copy(update={"model": str(shipped_models.PAINTER)})
    try:
        return policy.model_copy(update={"model": str(shipped_models.pipeline_folder(policy.model))})
    except KeyError as err:
        raise ConfigError(f"policy.model: {err.args[0]}") from err
