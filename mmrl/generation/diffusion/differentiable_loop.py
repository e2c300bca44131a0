"""Recompute the end of a rollout with gradients from its media back to the denoiser.

The steps up to some step are replayed from the recording. From there on the denoiser, the guidance and the steps are
computed with gradients, and so is everything that the pipeline does with its last latents: unpacking, the autoencoder,
the scaling to [0, 1]. Steps use the rollout's transition and noise, so unchanged parameters reproduce the media.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import Guiders
from mmrl.generation.diffusion.loops import PartialReplayLoop, StopPipeline
from mmrl.generation.diffusion.noise_levels import add_noise, predict_clean
from mmrl.generation.diffusion.pytree import zeros
from mmrl.generation.diffusion.recording import Recording, join, split
from mmrl.generation.diffusion.scheduler_hook import SchedulerStep
from mmrl.policy import BackpropSteps
from mmrl.seeds import stream_seed


class BackpropLoop(PartialReplayLoop):
    """A loop that replays the first steps, computes the next with gradients, then predicts x_0 and skips the rest.

    A skipped step returns its input.
    """

    def __init__(self, guiders: Guiders, recording: Recording, steps: BackpropSteps, clean: Tensor) -> None:
        """`clean` is x_0 of the rollout [B, ...], which `steps.noise_seed` noises again.

        Raises:
            UnsupportedError: `steps.noise_seed` is set although the first step is computed, which starts at pure noise.
        """
        super().__init__(guiders, recording)
        self.last = max(0, len(recording.next_latents) - 1 - steps.num_skipped_last)
        self.first = 0 if steps.count is None else max(0, self.last + 1 - steps.count)
        self._jumps = steps.num_skipped_last > 0
        self._noise_seed, self._clean, self._detached = steps.noise_seed, clean, steps.detached
        self._recomputed = steps.recomputed
        self._path: dict[int, Tensor] = {}  # stream: x with its graph, where the pipeline gets x without
        self._noise_generator: torch.Generator | None = None
        if steps.noise_seed is not None and self.first == 0:
            raise UnsupportedError("the first step of a rollout begins with pure noise: leave out the noise on x_0")

    def is_computed(self, step: int) -> bool:
        return self.first <= step <= self.last

    def needs_grad(self) -> bool:
        return self.step >= self.first  # operations between skipped steps belong to the graph

    def denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        if self.step > self.last:
            return zeros(self.recording.output_spec(self.step, self.calls))
        if self._recomputed and self.is_computed(self.step) and torch.is_grad_enabled():
            return checkpoint(compute, use_reentrant=False)
        return super().denoise(compute, arguments)

    def advance(self, step: SchedulerStep) -> Tensor:
        if self.step < self.first:
            self._rollout_noise(step, self.recording.next_latents[self.step][self.latent_stream].shape)
            replayed = self.replay_step()
            is_noised = self.step == self.first - 1 and self._noise_seed is not None
            return self._add_new_noise(step) if is_noised else replayed
        if self.step > self.last:
            return step.sample
        if self._detached and self.latent_stream in self._path:  # pipelines may have changed the value of x since
            path = self._path[self.latent_stream]
            step = replace(step, sample=step.sample + (path - path.detach()))
        if self.step == self.last and self._jumps:
            following = predict_clean(step).to(step.sample.dtype)
        else:
            following = self.differentiable_step(step)
        self._path[self.latent_stream] = following
        return following.detach() if self._detached and self.step < self.last else following

    def differentiable_step(self, step: SchedulerStep) -> Tensor:
        """Return x' of a step with gradients."""
        transition = self.recording.transition
        if transition is not None and self.recording.draws(self.step):
            mean, std = step.family.moments(transition, step)
            noise = self._rollout_noise(step, mean.shape)
            assert noise is not None
            decision = self.recording.decision_at(self.step)
            return self.recording.branches.expand_to_branches((mean + std * noise).to(step.sample.dtype), decision)
        deterministic = step.family.deterministic(step.scheduler)
        if deterministic is not None:
            return step.family.moments(deterministic, step)[0].to(step.sample.dtype)
        if self.step < len(self.recording.next_latents) - 1:
            raise UnsupportedError(f"{type(step.scheduler).__name__} samples noise itself in step {self.step + 1}, "
                                   "which cannot be repeated: set sampling.transition.name: native, and no window, or "
                                   "another policy.scheduler")  # fmt: skip
        return step.own()  # the last step adds no noise

    def _rollout_noise(self, step: SchedulerStep, shape: Sequence[int]) -> Tensor | None:
        """Return the noise of this step in the rollout; it must be called for every step in order."""
        if not self.recording.draws(self.step):
            return None
        device = step.sample.device
        if self._noise_generator is None:
            self._noise_generator = torch.Generator(device).manual_seed(stream_seed(self.recording.seed, "explore"))
        return torch.randn(tuple(shape), generator=self._noise_generator, device=device)

    def _add_new_noise(self, step: SchedulerStep) -> Tensor:
        streams = split(self._clean, self.recording.next_latents[self.step])
        clean = streams[self.latent_stream].float()
        seed = stream_seed(self._noise_seed or 0, "noise", self.latent_stream)
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed)).to(clean.device)
        return add_noise(step.family, clean, noise, step.levels[step.index][1]).to(step.sample.dtype)


class LatentBackpropLoop(BackpropLoop):
    """A loop that ends the pipeline's call once its last latents are computed, so that nothing is decoded."""

    @property
    def clean(self) -> Tensor:
        """The latents [B, ...] at the end, with their graph."""
        return join([self._path[stream] for stream in sorted(self._path)])

    def advance(self, step: SchedulerStep) -> Tensor:
        following = super().advance(step)
        if self.step == self.last and self.latent_stream == len(self.recording.next_latents[self.step]) - 1:
            raise StopPipeline
        return following
