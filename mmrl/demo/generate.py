"""Generation of images or answers with one checkpoint; the others wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import nn

from mmrl.build.checkpoint_pool import CheckpointPool, ModelRef
from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.config.sampling import AnySamplingConfig, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.demo.error_handling import DemoError, error_text
from mmrl.demo.jobs import BackgroundJob
from mmrl.errors import DataError, RunError
from mmrl.policy import RolloutRequest

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.understanding.vlm_policy import VLMPolicy


@dataclass(frozen=True)
class GenerationSettings:
    """The settings of a request; None: as the run sampled."""

    seed: int
    rows: int = 1
    steps: int | None = None
    guidance: float | None = None
    rlg: float | None = None
    temperature: float | None = None

    def of(self, sampling: AnySamplingConfig) -> AnySamplingConfig:
        """Return a model's own sampling with these settings."""
        if isinstance(sampling, SamplingConfig):
            changes = {"steps": self.steps, "guidance_scale": self.guidance}
        elif isinstance(sampling, ImageTokenSamplingConfig):
            changes = {"guidance_scale": self.guidance, "temperature": self.temperature}
        else:
            changes = {"temperature": self.temperature}
        return sampling.model_copy(update={name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True)
class GeneratedAnswers:
    """The answers of one checkpoint to one prompt."""

    media: Sequence[Any]  # pictures, videos as lists of pictures, or texts
    sample: Sample  # as the policy received it: completed by its task
    tokens: Sequence[Sequence[int] | None]
    drift: float | None = None  # of texts: nats per token from the base, on the sampled tokens


def generate(
    pool: CheckpointPool,
    subject: ModelRef,
    sample: Sample,
    settings: GenerationSettings,
    job: BackgroundJob[Any],
    task: str | None = None,
) -> GeneratedAnswers:
    """Generate with one checkpoint. Equal seeds give all checkpoints equal noise.

    Raises:
        DemoError: its files cannot be read, or it does not accept the sample.
        Stopped: the job was stopped, between two calls of the model.
    """
    job.raise_if_stopped()
    sampling = settings.of(subject.sampling)
    try:
        with pool.activate(subject.name) as policy, torch.no_grad():
            job.raise_if_stopped()
            if isinstance(subject.policy, VLMConfig):
                return _answered(cast("VLMPolicy", policy), subject, sample, settings, sampling, job, task)
            if isinstance(subject.policy, PolicyConfig):
                return _drawn(cast("PipelinePolicy", policy), subject, sample, settings, sampling, job)
            policy.check_sample(sample)  # type: ignore[union-attr]  # what draws by tokens
            with job.interruptible(*_first_layers(policy.image_model.network)):  # type: ignore[union-attr]
                return _made(policy, sample, settings, sampling)
    except (OSError, SafetensorError, DataError, RunError) as err:
        raise DemoError(error_text(err)) from err
    except ValueError as err:  # tensors that do not match the model, or invalid arguments
        raise DemoError(f"{type(err).__name__}: {error_text(err)}") from err


def _drawn(
    policy: PipelinePolicy,
    subject: ModelRef,
    sample: Sample,
    settings: GenerationSettings,
    sampling: AnySamplingConfig,
    job: BackgroundJob[Any],
) -> GeneratedAnswers:
    from mmrl.generation.diffusion.call_arguments import check_samples
    from mmrl.generation.diffusion.denoiser_hook import find_denoisers
    from mmrl.generation.inference import rl_guidance

    check_samples(policy.pipeline, [sample])
    guided: AbstractContextManager[None] = nullcontext()
    if settings.rlg is not None and subject.step:
        guided = rl_guidance(policy.pipeline, settings.rlg, policy.reference)
    with job.interruptible(*find_denoisers(policy.pipeline).values()), guided:
        return _made(policy, sample, settings, sampling)


def _answered(
    policy: VLMPolicy,
    subject: ModelRef,
    sample: Sample,
    settings: GenerationSettings,
    sampling: AnySamplingConfig,
    job: BackgroundJob[Any],
    task: str | None,
) -> GeneratedAnswers:
    from mmrl.understanding.tasks.definitions import apply_tasks

    answers = subject.run.config.answers if subject.run else None
    thinking, space, default = (answers.thinking, answers.space, answers.task) if answers else ("off", None, None)
    fitted = apply_tasks(policy, [sample], thinking, space, task or default)[0]
    with job.interruptible(policy.vlm.model.get_input_embeddings()):
        return _made(policy, fitted, settings, sampling, policy.replay)


def _first_layers(model: nn.Module) -> list[nn.Module]:
    """Return the first layer of each stack of layers: a module that is called once per token."""
    stacks = [each for name, each in model.named_modules() if isinstance(each, nn.ModuleList) and "layers" in name]
    return [stack[0] for stack in stacks if len(stack)]


def _made(
    policy: Any,
    sample: Sample,
    settings: GenerationSettings,
    sampling: AnySamplingConfig,
    replay: Callable[..., None] | None = None,
) -> GeneratedAnswers:
    request = RolloutRequest(sample, n=settings.rows, group=0, sampling=sampling)
    rollout = policy.rollout([request], settings.seed)
    tokens = rollout.token_ids if rollout.token_ids is not None else [None] * len(rollout.media)
    drift = None
    if replay is not None and isinstance(sampling, TokenSamplingConfig) and sampling.temperature == 1:
        drift = _drift(policy, rollout, replay)
    return GeneratedAnswers(list(rollout.media), sample, tokens, drift)


def _drift(policy: Any, rollout: Any, replay: Callable[..., None]) -> float | None:
    """Return the mean of log p(token) − log p_base(token) over the answer: an estimate of the KL divergence (k1)."""
    under_base: list[torch.Tensor] = []
    with policy.reference():
        replay(rollout, range(rollout.log_probs.shape[1]), lambda decisions: under_base.append(decisions.log_probs))
    moved = (rollout.log_probs - under_base[0])[rollout.mask]
    return float(moved.mean()) if moved.numel() else None
