"""The end of a rollout once more, with gradients from its media back to the denoiser.

The past is played back from the recording up to some step. From there on the denoiser, the guidance and the steps are
computed with gradients, and so is all that the pipeline does with its last latents: unpacking, the autoencoder, the
scaling to [0, 1]. Nothing of that is written again here. Steps follow the rollout's transition with the rollout's
noise: where the parameters are those of the rollout, so are the pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import Guiders
from mmrl.generation.diffusion.loops import PartialReplayLoop
from mmrl.generation.diffusion.noise_levels import noised, predict_clean
from mmrl.generation.diffusion.pytree import zeros
from mmrl.generation.diffusion.recording import Recording, split
from mmrl.generation.diffusion.scheduler_hook import Step
from mmrl.policy import BackpropSteps
from mmrl.seeds import stream_seed


class BackpropLoop(PartialReplayLoop):
    """Plays back, then lives, then coasts: after a jump to x_0, steps hand on what they are given."""

    def __init__(self, guiders: Guiders, recording: Recording, live: BackpropSteps, clean: Tensor) -> None:
        """
        Raises:
            UnsupportedError: noise is asked for before the first step, where the rollout had nothing else.
        """
        super().__init__(guiders, recording)
        steps = len(recording.next_latents)
        self.last = max(0, steps - 1 - live.num_skipped_last)
        self.first = 0 if live.count is None else max(0, self.last + 1 - live.count)
        self._jumps = live.num_skipped_last > 0
        self._noise_seed, self._clean, self._detached = live.noise_seed, clean, live.detached
        self._path: dict[int, Tensor] = {}  # of each part x with its graph, where pipelines are handed x without it
        self._explorer: torch.Generator | None = None
        if live.noise_seed is not None and self.first == 0:
            raise UnsupportedError("the first step of a rollout begins with pure noise: leave out the noise on x_0")

    def is_computed(self, step: int) -> bool:
        return self.first <= step <= self.last

    def needs_grad(self) -> bool:
        return self.step >= self.first  # what stands between coasting steps belongs to the graph

    def denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        if self.step > self.last:
            return zeros(self.recording.output_spec(self.step, self.calls))
        return super().denoise(compute, arguments)

    def advance(self, step: Step) -> Tensor:
        if self.step < self.first:
            self._explore(step, self.recording.next_latents[self.step][self.latent_stream].shape)
            played = self.replay_step()
            return self._noised_anew(step) if self.step == self.first - 1 and self._noise_seed is not None else played
        if self.step > self.last:
            return step.sample
        if self._detached and self.latent_stream in self._path:  # pipelines may have changed x since: its value counts
            path = self._path[self.latent_stream]
            step = replace(step, sample=step.sample + (path - path.detach()))
        following = self._jump(step) if self.step == self.last and self._jumps else self.differentiable_step(step)
        self._path[self.latent_stream] = following
        return following.detach() if self._detached and self.step < self.last else following

    def differentiable_step(self, step: Step) -> Tensor:
        """x' of a live step."""
        transition = self.recording.transition
        if transition is not None and self.step in self.recording.decisions:
            mean, std = step.family.moments(transition, step)
            noise = self._explore(step, mean.shape)
            assert noise is not None
            decision = self.recording.decisions.index(self.step)
            return self.recording.branches.expand_to_branches((mean + std * noise).to(step.sample.dtype), decision)
        deterministic = step.family.deterministic(step.scheduler)
        if deterministic is not None:
            return step.family.moments(deterministic, step)[0].to(step.sample.dtype)
        if self.step < len(self.recording.next_latents) - 1:
            raise UnsupportedError(f"{type(step.scheduler).__name__} draws noise of its own in step {self.step + 1}, "
                                   "which cannot be drawn again: set sampling.transition.name: native, and no window, "
                                   "or another policy.scheduler")  # fmt: skip
        return step.own()  # the last step adds no noise

    def _jump(self, step: Step) -> Tensor:
        """x_0 as the denoiser sees it from here."""
        return predict_clean(step).to(step.sample.dtype)

    def _explore(self, step: Step, shape: Sequence[int]) -> Tensor | None:
        """The noise that the rollout drew in this step; steps are asked in order, played back ones too."""
        if self.step not in self.recording.decisions:
            return None
        device = step.sample.device
        if self._explorer is None:
            self._explorer = torch.Generator(device).manual_seed(stream_seed(self.recording.seed, "explore"))
        return torch.randn(tuple(shape), generator=self._explorer, device=device)

    def _noised_anew(self, step: Step) -> Tensor:
        parts = split(self._clean, self.recording.next_latents[self.step])
        clean = parts[self.latent_stream].float()
        seed = stream_seed(self._noise_seed or 0, "noise", self.latent_stream)
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed)).to(clean.device)
        return noised(step.family, clean, noise, step.levels[step.index][1]).to(step.sample.dtype)
