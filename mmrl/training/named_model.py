"""`NamedModel`: a model of a run beside the policy, or the policy itself, as objectives and handles use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from mmrl.algorithms.forward_process import interpolate
from mmrl.data.sample import Sample
from mmrl.policy import DecisionCallback, LatentInitPolicy, TeacherForcingPolicy
from mmrl.rewards.core.denoising import Denoised
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText
from mmrl.seeds import fold_in
from mmrl.training.objectives.replay_passes import replayed_log_probs
from mmrl.training.offloaded_weights import OffloadedWeights


class AnsweringPolicy(TeacherForcingPolicy, Protocol):
    """A policy that writes texts, of one turn or of several."""

    def answering(self) -> AbstractContextManager[None]:
        """Return a context in which rollouts are one answer to each prompt, as without an environment."""


@dataclass(frozen=True)
class NamedModel:
    """A model that answers prompts, and scores what the policy wrote or any text, without gradients."""

    policy: AnsweringPolicy
    weights: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which `policy` computes with the parameters of this model."""
    offloaded: OffloadedWeights | None = None
    """The weights, if they lie in the CPU's memory between uses; `weights` then loads them."""

    @classmethod
    def of_offloaded(cls, policy: AnsweringPolicy, offloaded: OffloadedWeights) -> NamedModel:
        """Return a model whose weights are loaded when it computes, and stay until `release`."""
        return cls(policy, offloaded.in_use, offloaded)

    def release(self) -> None:
        """Free the device's copy of offloaded weights."""
        if self.offloaded is not None:
            self.offloaded.release()

    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of texts with their log-probabilities under this model."""
        with torch.no_grad(), self.weights():
            return self.policy.score_targets(targets)

    def answers(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return a rollout of one answer for each request, also where the model plays in an environment."""
        with self.weights(), self.policy.answering():
            return self.policy.rollout(requests, seed)

    def draw(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return a rollout of pictures; the model is one that draws."""
        with self.weights():
            return self.policy.rollout(requests, seed)

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Replay decisions of the policy's own rollout under this model, without gradients."""
        with torch.no_grad(), self.weights():
            self.policy.replay(rollout, step_indices, visit)

    def log_probs(self, rollout: Rollout, step_indices: Sequence[int]) -> Tensor:
        """Return [B, K] float32, the log-probabilities of K decisions of the policy's own rollout under this model."""
        with self.weights():
            return replayed_log_probs(self.policy, rollout, step_indices)

    def denoise(
        self, samples: Sequence[Sample], media: Sequence[Any], places: Sequence[float], seed: int
    ) -> list[list[Denoised]]:
        """Return, for each picture or video, what the model predicts at each noise level, without guidance.

        The model draws. `places` are quantiles in (0, 1] of its noise levels; the noise of a level is the same for all
        rows.
        """
        policy = cast(LatentInitPolicy, self.policy)
        with torch.no_grad(), self.weights():
            clean = policy.encode(media)
            rollout = policy.rollout_from_latents(samples, range(len(samples)), clean, media, guidance_scale=1.0)
            latents = clean.float().cpu()
            found: list[list[Denoised]] = [[] for _ in samples]
            for number, place in enumerate(places):
                sigma = policy.noise_level(place)
                generator = torch.Generator().manual_seed(fold_in(seed, number))
                noise = torch.randn(clean.shape[1:], generator=generator)
                noisy = interpolate(clean.float(), noise.to(clean.device).expand_as(clean), sigma).to(clean.dtype)
                velocity = policy.predict_velocity(rollout, noisy, sigma)
                for row, own in enumerate(velocity.float().cpu()):
                    found[row].append(Denoised(sigma, latents[row].numpy(), noise.numpy(), own.numpy()))
        return found
