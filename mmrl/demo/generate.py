"""One checkpoint draws or answers while the others wait."""

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
from mmrl.demo.error_handling import DemoError, told
from mmrl.demo.jobs import Job
from mmrl.errors import DataError, RunError
from mmrl.policy import RolloutRequest

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.understanding.vlm_policy import VLMPolicy


@dataclass(frozen=True)
class Settings:
    """How it is asked; None: as its run sampled."""

    seed: int
    rows: int = 1
    steps: int | None = None
    guidance: float | None = None
    rlg: float | None = None
    temperature: float | None = None

    def of(self, sampling: AnySamplingConfig) -> AnySamplingConfig:
        """A subject's own sampling with what is set here."""
        if isinstance(sampling, SamplingConfig):
            changes = {"steps": self.steps, "guidance_scale": self.guidance}
        elif isinstance(sampling, ImageTokenSamplingConfig):
            changes = {"guidance_scale": self.guidance, "temperature": self.temperature}
        else:
            changes = {"temperature": self.temperature}
        return sampling.model_copy(update={name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True)
class Made:
    """What came of it."""

    media: Sequence[Any]  # pictures, videos as lists of pictures, or texts
    sample: Sample  # as the policy was asked: completed by its task
    tokens: Sequence[Sequence[int] | None]
    drift: float | None = None  # of texts: nats a token from the base, by what was written


def ask(
    lineup: CheckpointPool,
    subject: ModelRef,
    sample: Sample,
    settings: Settings,
    job: Job[Any],
    task: str | None = None,
) -> Made:
    """Draw or answer with one checkpoint. The same seed gives every checkpoint the same noise.

    Raises:
        DemoError: its files cannot be read, or the sample is none that it takes.
        Stopped: between two calls of its model.
    """
    job.refuse_stopped()
    sampling = settings.of(subject.sampling)
    try:
        with lineup.activate(subject.name) as policy, torch.no_grad():
            job.refuse_stopped()
            if isinstance(subject.policy, VLMConfig):
                return _answered(cast("VLMPolicy", policy), subject, sample, settings, sampling, job, task)
            if isinstance(subject.policy, PolicyConfig):
                return _drawn(cast("PipelinePolicy", policy), subject, sample, settings, sampling, job)
            policy.check_sample(sample)  # type: ignore[union-attr]  # what draws by tokens
            with job.watching(*_first_layers(policy.image_model.network)):  # type: ignore[union-attr]
                return _made(policy, sample, settings, sampling)
    except (OSError, SafetensorError, DataError, RunError) as err:
        raise DemoError(told(err)) from err
    except ValueError as err:  # of files whose tensors are others than the model's, and of arguments
        raise DemoError(f"{type(err).__name__}: {told(err)}") from err


def _drawn(
    policy: PipelinePolicy,
    subject: ModelRef,
    sample: Sample,
    settings: Settings,
    sampling: AnySamplingConfig,
    job: Job[Any],
) -> Made:
    from mmrl.generation.diffusion.call_arguments import check_samples
    from mmrl.generation.diffusion.denoiser_hook import find_denoisers
    from mmrl.generation.inference.guidance import rl_guidance

    check_samples(policy.pipeline, [sample])
    guided: AbstractContextManager[None] = nullcontext()
    if settings.rlg is not None and subject.step:
        guided = rl_guidance(policy.pipeline, settings.rlg, policy.reference)
    with job.watching(*find_denoisers(policy.pipeline).values()), guided:
        return _made(policy, sample, settings, sampling)


def _answered(
    policy: VLMPolicy,
    subject: ModelRef,
    sample: Sample,
    settings: Settings,
    sampling: AnySamplingConfig,
    job: Job[Any],
    task: str | None,
) -> Made:
    from mmrl.understanding.tasks.definitions import apply_tasks

    answers = subject.run.config.answers if subject.run else None
    thinking, space, usual = (answers.thinking, answers.space, answers.task) if answers else ("off", None, None)
    fitted = apply_tasks(policy, [sample], thinking, space, task or usual)[0]
    with job.watching(policy.vlm.model.get_input_embeddings()):
        return _made(policy, fitted, settings, sampling, policy.replay)


def _first_layers(model: nn.Module) -> list[nn.Module]:
    """Of each stack of layers in a model: what is called once for every token."""
    stacks = [each for name, each in model.named_modules() if isinstance(each, nn.ModuleList) and "layers" in name]
    return [stack[0] for stack in stacks if len(stack)]


def _made(
    policy: Any,
    sample: Sample,
    settings: Settings,
    sampling: AnySamplingConfig,
    replay: Callable[..., None] | None = None,
) -> Made:
    request = RolloutRequest(sample, n=settings.rows, group=0, sampling=sampling)
    rollout = policy.rollout([request], settings.seed)
    tokens = rollout.token_ids if rollout.token_ids is not None else [None] * len(rollout.media)
    drift = None
    if replay is not None and isinstance(sampling, TokenSamplingConfig) and sampling.temperature == 1:
        drift = _drift(policy, rollout, replay)
    return Made(list(rollout.media), sample, tokens, drift)


def _drift(policy: Any, rollout: Any, replay: Callable[..., None]) -> float | None:
    """Mean of log p(token) − log p_base(token) over what was written: an estimate of the KL divergence (k1)."""
    under_base: list[torch.Tensor] = []
    with policy.reference():
        replay(rollout, range(rollout.log_probs.shape[1]), lambda decisions: under_base.append(decisions.log_probs))
    moved = (rollout.log_probs - under_base[0])[rollout.mask]
    return float(moved.mean()) if moved.numel() else None
