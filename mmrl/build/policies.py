"""Load the policy that a configuration names, and prepare samples for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from mmrl.build.schemes import provided_model
from mmrl.config.data import AnswersConfig
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig, ServedVLMConfig, VLMConfig
from mmrl.config.sampling import (
    SAMPLING_OF,
    AnySamplingConfig,
    BranchConfig,
    ImageTokenSamplingConfig,
    SamplingConfig,
    TokenSamplingConfig,
    TransitionConfig,
    WindowConfig,
)
from mmrl.config.servers import ServersConfig
from mmrl.config.train import TrainConfig
from mmrl.data.media.sample_media import with_answer_paths
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.generation.image_tokens import ImageTokenPolicy
    from mmrl.generation.memory.memory_report import MemoryEstimate
    from mmrl.understanding.vlm_policy import VLMPolicy

SERVED = "served"
"""The folder of a run with the weights that servers read."""
P = TypeVar("P", PolicyConfig, VLMConfig, ImageTokenConfig)
AnyPolicy: TypeAlias = "PipelinePolicy | VLMPolicy | ImageTokenPolicy"


def policy_class(policy: AnyPolicyConfig) -> type[PipelinePolicy] | type[VLMPolicy] | type[ImageTokenPolicy]:
    """Return the class of a policy. No model is loaded, and no library that this kind does not need."""
    if isinstance(policy, VLMConfig):
        from mmrl.understanding.vlm_policy import VLMPolicy

        return VLMPolicy
    if isinstance(policy, ImageTokenConfig):
        from mmrl.generation.image_tokens import ImageTokenPolicy

        return ImageTokenPolicy
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

    return PipelinePolicy


def build_policy(
    policy: AnyPolicyConfig,
    sampling: AnySamplingConfig,
    media: MediaConfig | None = None,
    environment: EnvironmentConfig | None = None,
) -> AnyPolicy:
    """Load the model that a configuration names, and let it play in an environment, if there is one.

    Raises:
        ConfigError: Policies of this kind do not sample in this way, or write no turns; or there is no such
            folder, device or environment.
        DataError: The model's chat template cannot continue a conversation.
    """
    if problem := missing_folder(policy) or missing_device(policy):
        raise ConfigError(problem)
    if sampling.kind != SAMPLING_OF[policy.kind]:
        raise ConfigError(f"sampling.kind: policies of kind {policy.kind} do not sample by {sampling.kind}")
    cls: Any = policy_class(policy)
    arguments = [resolve_model_path(cast(Any, policy)), sampling, *([media] if isinstance(policy, VLMConfig) else [])]
    built: AnyPolicy = cls.from_config(*arguments)
    if environment is not None:
        if not isinstance(policy, VLMConfig):
            raise ConfigError(f"environment: policies of kind {policy.kind} write no turns: leave it out")
        from mmrl.environments import build_environment

        player = cast("VLMPolicy", built)
        partner = build_environment(resolve_estimator(environment), player.vlm.family.name)
        player.play_in(partner, environment.context_tokens, environment.waves)
    return built


def missing_folder(policy: AnyPolicyConfig) -> str | None:
    """Return what is wrong with a policy's model that is a path, as hub ids are not, and is not there."""
    if not policy.model.startswith((".", "~", "/")) or Path(policy.model).exists():
        return None
    return f"policy.model: {policy.model}: there is no such folder; relative paths start at {Path.cwd()}"


def missing_device(policy: AnyPolicyConfig) -> str | None:
    """Return what is wrong with a policy's device that torch does not know, or that this machine lacks."""
    import torch

    if isinstance(policy, ServedVLMConfig) or policy.device == "auto":
        return None
    try:
        torch.empty(0, device=policy.device)
    except (RuntimeError, AssertionError) as err:  # AssertionError: torch was built without CUDA
        reason = str(err).partition("\n")[0]
        return f"policy.device: {policy.device} cannot be used on this machine ({reason}): set auto, or cpu"
    return None


def resolve_estimator(environment: EnvironmentConfig) -> EnvironmentConfig:
    """Return the settings of an environment, in which a provided estimator of progress is its local folder.

    Raises:
        ConfigError: no package provides it.
    """
    model = environment.args.get("model")
    if environment.name != "attributed" or not isinstance(model, str):
        return environment
    folder = provided_model(model, "progress")
    args = environment.args if folder is None else {**environment.args, "model": folder}
    return environment.model_copy(update={"args": args})


def check_servers(config: TrainConfig) -> list[str]:
    """Return a line about each server of `run.servers`; no model is loaded.

    Raises:
        ConfigError: there are fewer servers than processes, the variable with the key is not set, or no server of a
            process answers.
    """
    settings = config.run.servers
    if settings is None:
        return []
    from mmrl.understanding.serving.server_status import server_status

    parts = processes.gather(server_status(own_servers(settings)))
    for rank, status in enumerate(parts):
        if not any(answers for _, answers, _ in status):
            silent = "; ".join(f"{url}: {words}" for url, _, words in status)
            whose = f" of process {rank}" if len(parts) > 1 else ""
            key = "run.servers.urls" if settings.file is None else f"run.servers.file: {settings.file}"
            raise ConfigError(f"{key}: no server{whose} answers: {silent or 'it names none'}")
    return [f"server {url}: {words}" for status in parts for url, _, words in status]


def own_servers(settings: ServersConfig) -> ServersConfig:
    """Return the settings of this process, with its part of the servers, which get the weights from it alone.

    Raises:
        ConfigError: there are fewer servers than processes, or processes would share a file of servers.
    """
    count = processes.size()
    if settings.file is not None:
        if count > 1 and "{rank}" not in settings.file:
            raise ConfigError(
                f"run.servers.file: {count} processes train, each with other servers: name a file for each, with "
                "{rank} in the place of its number"
            )
        return settings
    if len(settings.urls) < count:
        raise ConfigError(
            f"run.servers.urls: {count} processes train, each with other servers, and {len(settings.urls)} are named: "
            f"name {count} or more, or start fewer processes"
        )
    return settings.model_copy(update={"urls": settings.urls[processes.rank() :: count]})


def use_servers(policy: AnyPolicy, config: TrainConfig, run: Path) -> None:
    """Let the servers of `run.servers` write a policy's rollouts, if there are some.

    Raises:
        ConfigError: the variable with the key is not set, a library that `run.servers.weights` needs is missing, or
            there are fewer servers than processes.
    """
    if config.run.servers is not None:
        cast("VLMPolicy", policy).serve(own_servers(config.run.servers), run / SERVED)


def prepare_samples(
    policy: AnyPolicy,
    config: AnyPolicyConfig,
    answers: AnswersConfig,
    sampling: AnySamplingConfig,
    samples: Sequence[Sample],
) -> list[Sample]:
    """Return the samples, those of a VLM completed with the instructions and rewards of their tasks.

    Raises:
        ConfigError, DataError: The policy cannot take a sample. The message names the sample and the reason.
    """
    fitted = list(samples)
    if isinstance(config, VLMConfig):
        from mmrl.understanding.tasks.definitions import apply_tasks

        if answers.reading == "lenient":
            fitted = [replace(sample, metadata={"reading": "lenient", **sample.metadata}) for sample in fitted]
        return apply_tasks(cast("VLMPolicy", policy), fitted, answers.thinking, answers.space, answers.task)
    if isinstance(config, ImageTokenConfig):
        for sample in fitted:
            cast("ImageTokenPolicy", policy).check_sample(sample)
        return list(map(with_answer_paths, fitted))  # its answers are images, which it reads by their paths
    from mmrl.generation.diffusion.call_arguments import check_samples, warn_truncated_prompts

    pipeline = cast("PipelinePolicy", policy).pipeline
    check_samples(pipeline, fitted)
    warn_truncated_prompts(pipeline, cast(SamplingConfig, sampling), fitted)
    return fitted


def check_call_rows(policy: AnyPolicy, config: AnyPolicyConfig, rows: int) -> None:
    """Check that calls of the policy may have as many rows.

    Raises:
        ConfigError: calls of this pipeline make one picture or video.
    """
    if isinstance(config, PolicyConfig):
        from mmrl.generation.diffusion.call_arguments import check_rows

        check_rows(cast("PipelinePolicy", policy).pipeline, rows)


def without_exploration(sampling: AnySamplingConfig) -> AnySamplingConfig:
    """Return the sampling settings for evaluation: denoising along the ODE, each step once.

    Tokens are sampled as in training.
    """
    if isinstance(sampling, TokenSamplingConfig | ImageTokenSamplingConfig):
        return sampling
    plain = {"transition": TransitionConfig(), "window": WindowConfig(), "branch": BranchConfig(), "zigzag": None}
    return sampling.model_copy(update=plain)


def estimate_memory(config: TrainConfig) -> MemoryEstimate:
    """Estimate the memory of a generator's training from the configuration files of its model; no weights are read."""
    from mmrl.generation.memory import estimate
    from mmrl.generation.memory.architecture import find_architecture

    policy = resolve_model_path(config.drawing()[0])
    return estimate.estimate_memory(config, find_architecture(policy.model, policy.revision))


def resolve_model_path(policy: P) -> P:
    """Return the policy's configuration with the local folder of a model that an installed package provides.

    A folder or a hub id stays as it is.

    Raises:
        ConfigError: No package provides the model, or it names a server.
    """
    if "@http://" in policy.model or "@https://" in policy.model:
        raise ConfigError(
            f"policy.model: {policy.model} is behind a server, which `mmrl evaluate` compares and nothing can "
            "train: it returns no token ids, no log-probabilities and no version of its weights. Name the model's own "
            "folder or id here, and servers of vLLM in run.servers.urls"
        )
    folder = provided_model(policy.model, policy.kind)
    return policy if folder is None else policy.model_copy(update={"model": folder})
