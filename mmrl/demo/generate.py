"""Generation of images or answers with one checkpoint; the others wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.model_references import ModelRef
from mmrl.config.data import AnswersConfig
from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.config.sampling import AnySamplingConfig, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.demo.error_handling import DemoError, error_text
from mmrl.demo.jobs import StoppableJob
from mmrl.errors import DataError, RunError
from mmrl.generation.diffusion.call_arguments import check_samples
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.inference import rl_guidance
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.drawn_texts import DrawnTexts


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
    written: Sequence[str] = ()  # the texts that the pictures were drawn from; empty: nothing was written for them


def generate(
    pool: CheckpointPool,
    subject: ModelRef,
    sample: Sample,
    settings: GenerationSettings,
    job: StoppableJob[Any],
    task: str | None = None,
) -> GeneratedAnswers:
    """Generate with one checkpoint. Equal seeds give all checkpoints equal noise.

    With a painter, the settings are those of the painter, and the policy writes as in its run's evaluations.

    Raises:
        DemoError: its files cannot be read, or it does not accept the sample.
        Stopped: the job was stopped, between two calls of the model.
    """
    job.raise_if_stopped()
    sampling = subject.sampling if subject.painter else settings.of(subject.sampling)
    try:
        with torch.no_grad(), ExitStack() as stack:
            answering: Any = stack.enter_context(pool.answering(subject.name))
            job.raise_if_stopped()
            policy = drawing = answering
            if isinstance(answering, DrawnTexts):
                answering = replace(answering, sampling=settings.of(subject.answer_sampling))
                policy, drawing = answering.writer, cast(Any, answering.painter.policy)
                stack.enter_context(job.interruptible(*find_denoisers(drawing.pipeline).values()))
            sample, called = _prepared(policy, subject, sample, task)
            stack.enter_context(job.interruptible(*called))
            if isinstance(subject.policy, VLMConfig):
                stack.enter_context(policy.answering())
            if settings.rlg is not None and subject.step and subject.answer_kind == "pipeline":
                stack.enter_context(rl_guidance(drawing.pipeline, settings.rlg, drawing.reference))
            request = RolloutRequest(sample, n=settings.rows, group=0, sampling=sampling)
            rollout = answering.rollout([request], settings.seed)
            tokens = rollout.token_ids if rollout.token_ids is not None else [None] * len(rollout.media)
            measured = isinstance(sampling, TokenSamplingConfig) and sampling.temperature == 1
            drift = _drift(policy, rollout) if measured else None
            written = [each.prompt for each in rollout.drawn.samples] if rollout.drawn is not None else []
            return GeneratedAnswers(list(rollout.media), sample, tokens, drift, written)
    except (OSError, SafetensorError, DataError, RunError) as err:
        raise DemoError(error_text(err)) from err
    except ValueError as err:  # tensors that do not match the model, or invalid arguments
        raise DemoError(f"{type(err).__name__}: {error_text(err)}") from err


def _prepared(policy: Any, subject: ModelRef, sample: Sample, task: str | None) -> tuple[Sample, Collection[nn.Module]]:
    """Return the sample as the policy accepts it, and modules that are called once per denoising step or token."""
    if isinstance(subject.policy, VLMConfig):
        from mmrl.understanding.tasks.definitions import apply_tasks

        answers = subject.run.config.answers if subject.run else AnswersConfig()
        fitted = apply_tasks(policy, [sample], answers.thinking, answers.space, task or answers.task)
        return fitted[0], [policy.vlm.model.get_input_embeddings()]
    if isinstance(subject.policy, PolicyConfig):
        check_samples(policy.pipeline, [sample])
        return sample, find_denoisers(policy.pipeline).values()
    policy.check_sample(sample)
    modules = policy.image_model.network.named_modules()
    stacks = [each for name, each in modules if isinstance(each, nn.ModuleList) and "layers" in name]
    return sample, [stack[0] for stack in stacks if len(stack)]


def _drift(policy: Any, rollout: Any) -> float | None:
    """Return the mean of log p(token) − log p_base(token) over the answer: an estimate of the KL divergence (k1)."""
    under_base: list[torch.Tensor] = []
    with policy.reference():
        steps = range(rollout.log_probs.shape[1])
        policy.replay(rollout, steps, lambda decisions: under_base.append(decisions.log_probs))
    moved = (rollout.log_probs - under_base[0])[rollout.mask]
    return float(moved.mean()) if moved.numel() else None
