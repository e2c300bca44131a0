"""The interface between models and training: `Policy`, the protocols of what some policies do beside it, `Capability`.

`mmrl.training` knows models through this file alone: it passes a `RolloutRequest` and gets a `Rollout`. A denoising
step and a token are both *decisions* with a log-probability, so one loop trains a video diffusion model and a
vision-language model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from mmrl.data.sample import Sample
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText


class Capability(StrEnum):
    """A thing that a policy can do beyond sampling. An objective lists the capabilities that it needs."""

    LOG_PROBS = "log_probs"
    """Replay gives the log-probability of every recorded decision, with gradients."""
    MOMENTS = "moments"
    """Decisions are Gaussian: replay also gives their mean, standard deviation and the velocity behind them."""
    PREDICT_VELOCITY = "predict_velocity"
    """`predict_velocity` works at any (x_t, sigma), with gradients."""
    FROM_LATENTS = "from_latents"
    """`rollout_from_latents` builds a rollout from clean latents, so that a subset of rows can be trained on."""
    ENCODE_MEDIA = "encode_media"
    """`encode` returns the clean latents of images that the policy did not generate."""
    DECODE_WITH_GRAD = "decode_with_grad"
    """`decode_with_grad` returns media with gradients, for rewards that are differentiable."""
    ENTROPY = "entropy"
    """Decisions are categorical (tokens): replay also gives their entropy, and the mean of all log-probabilities."""
    TEACHER_FORCE = "teacher_force"
    """`score_targets` returns log-probabilities of texts that the policy did not write."""
    SELECT_ROWS = "select_rows"
    """`Rollout.select` can take a subset of rows, because rows do not depend on one another."""
    ROW_STARTS = "row_starts"
    """Rows of a group may start differently (`RowStart`): with a prefix, another prompt, or other limits."""
    FUSED_LOSS = "fused_loss"
    """`fused_loss` passes the loss's derivative to the replay, which computes the head's gradient in the same pass."""


@dataclass(frozen=True)
class StepOutputs:
    """K of a rollout's T decisions, recomputed under the current parameters."""

    step_indices: tuple[int, ...]  # which of the rollout's T
    log_probs: Tensor  # [B, K] float32; with a graph where gradients are enabled
    mean: Tensor | None = None  # [B, K, ...] float32 (capability MOMENTS)
    std: Tensor | None = None  # [B, K] float32 (capability MOMENTS)
    velocity: Tensor | None = None  # [B, K, ...] the model output that the sampler consumed (capability MOMENTS)
    gain: Tensor | None = None  # [B, K] |d mean / d velocity| >= 0 (capability MOMENTS); None: the scheduler's own step
    entropy: Tensor | None = None  # [B, K] float32, in nats, of the distribution that was sampled (capability ENTROPY)
    mean_log_probs: Tensor | None = None  # [B, K] float32, over all tokens that can be sampled, no graph (ENTROPY)


DecisionCallback = Callable[[StepOutputs], None]
"""A function that a replay calls once per block of decisions; it may call `backward()`, but not the policy."""


LossGradFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probs [M], batch indices [M] int64, step indices [M] int64) -> [M], the loss's derivative in the log-probs."""


class Policy(Protocol):
    """A model that generates images, videos or texts and can recompute the probability of what it generated."""

    capabilities: frozenset[Capability]  # a class attribute, known before any model is loaded
    version: int  # the number of optimizer updates so far; written into every rollout

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Sample sum(r.n) trajectories without gradients. Equal requests and seed give equal rollouts."""

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Recompute these decisions in order and pass them to `visit`, with a graph if gradients are enabled.

        A pipeline passes one decision at a time (K = 1), so that only one denoiser graph is in memory;
        a token policy passes all of them in one call.
        """

    def reference(self) -> AbstractContextManager[None]:
        """Return a context in which the policy computes with the parameters that training started from."""

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by stable name, in stable order."""

    def lr_scale(self, name: str) -> float:
        """Return the factor on `optimizer.lr` for this parameter (a vision tower may learn slower than the rest)."""

    def save(self, folder: Path) -> None:
        """Write the trained parameters (a LoRA or full weights) in the format of the library that loads them."""

    def load(self, folder: Path) -> None:
        """Load what `save` wrote."""

    def replay_gap(self, rollout: Rollout) -> float:
        """Return the largest difference between the rollout and a replay under unchanged parameters.

        That is max |log-prob difference| over decisions, or max |velocity difference| at a recorded step for rollouts
        without decisions (deterministic samplers). It is 0 where the replay repeats the rollout exactly.
        """


@runtime_checkable
class AnnouncedRollouts(Protocol):
    """A policy that generates the rollouts of several calls at once, if it knows them before they are made."""

    def announce(self, calls: Sequence[tuple[Sequence[RolloutRequest], int]]) -> None:
        """Generate for calls (requests, seed) of `rollout`, which are made next; each then returns at once."""


@runtime_checkable
class InterruptiblePolicy(Protocol):
    """A policy whose answers may go on under newer parameters (`Rollout.versions`)."""

    def adopt(self, take: Callable[[], bool]) -> None:
        """Call `take` now and then while answers are written, from now on.

        It loads newer parameters and their version into this policy, and returns True, or returns False.

        Raises:
            ConfigError: an answer of this policy ends under the parameters that it began with.
        """


@dataclass(frozen=True)
class ReferencePolicy:
    """A policy as it was before training: its rollouts are computed with the reference parameters."""

    policy: Any

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Sample as `Policy.rollout` does, with the parameters that training started from."""
        with self.policy.reference():
            rollout: Rollout = self.policy.rollout(requests, seed)
            return rollout


class VelocityPolicy(Policy, Protocol):
    """A policy with the capability PREDICT_VELOCITY.

    Noise levels are a flow's, x_t = (1 - sigma) x_0 + sigma noise, and so is the velocity, noise - x_0, also for
    models that predict noise.
    """

    def noise_level(self, place: float) -> float:
        """Return the noise level in (0, 1] at quantile `place` in (0, 1] of the levels that the model was trained at.

        `predict_velocity` is exact at these levels; a model with a thousand timesteps rounds others to the nearest.
        """

    def predict_velocity(self, rollout: Rollout, noisy: Tensor, sigma: float) -> Tensor:
        """Return the velocity of each row of `noisy` [B, ...] at noise level sigma in (0, 1]."""


class FusedLossPolicy(Policy, Protocol):
    """A policy with the capability FUSED_LOSS."""

    def fused_loss(self, loss_grad: LossGradFn) -> AbstractContextManager[None]:
        """Return a context in which replays compute the head's gradient from this derivative of the loss.

        A derivative that differs from the backpropagated one costs time and memory but changes no result; see
        `mmrl_kernels.linear_logprob`.
        """


@dataclass(frozen=True)
class BackpropSteps:
    """The denoising steps that are recomputed with gradients, from a rollout's noise to its media.

    Earlier steps are replayed from the rollout.
    """

    count: int | None = None
    """The number of steps, at least 1; None means all. A rollout with fewer is computed from its first step."""
    num_skipped_last: int = 0
    """The number of final steps that are skipped: the last computed step predicts x_0 directly (ReFL)."""
    noise_seed: int | None = None
    """Start from the rollout's x_0, noised to the level of the first computed step with this seed (DRaFT-LV); None
    starts from the rollout's own latents at that step."""
    detached: bool = False
    """True stops gradients at the denoiser's inputs; they flow through the sampler's sum of its outputs (DRTune)."""
    recomputed: bool = False
    """True computes each denoiser call again in the backward pass, so that no more than one call's activations are in
    memory (time-step checkpointing, arXiv:2412.02852). Gradients are the same."""


class DecodingPolicy(Policy, Protocol):
    """A policy with the capability DECODE_WITH_GRAD."""

    def keep_latents(self) -> AbstractContextManager[None]:
        """Return a context in which rollouts keep the latents of every step, which `decode_with_grad` starts from."""

    def decode_with_grad(self, rollout: Rollout, steps: BackpropSteps) -> Tensor:
        """Return the media [B, 3, H, W], or [B, F, 3, H, W] for videos, float32 in [0, 1], with a graph if enabled.

        Under unchanged parameters, without `num_skipped_last` and `noise_seed`, they equal `rollout.media`.
        """

    def clean_with_grad(self, rollout: Rollout, steps: BackpropSteps) -> Tensor:
        """Return the latents [B, ...] that `decode_with_grad` decodes, in the packing of `rollout.clean`, undecoded."""


class LatentInitPolicy(VelocityPolicy, Protocol):
    """A policy with the capabilities FROM_LATENTS and ENCODE_MEDIA."""

    def rollout_from_latents(
        self,
        samples: Sequence[Sample],
        groups: Sequence[int],
        clean: Tensor,
        media: Sequence[Any],
        guidance_scale: float | None = None,
    ) -> Rollout:
        """Return a rollout without decisions that ends in the latents `clean` [B, ...], in the loop's packing.

        Samples with conditions must all be the same one, as in `rollout`. `guidance_scale` is that of velocities; None:
        as the policy samples, 1: there is none.
        """

    def encode(self, media: Sequence[Any]) -> Tensor:
        """Return the clean latents [B, ...] of PIL images or lists of frames, in the sampling loop's own packing.

        Raises:
            UnsupportedError: this kind of model has no encoder of such media; of images, even if `media` is empty.
        """


class TeacherForcingPolicy(Policy, Protocol):
    """A policy with the capability TEACHER_FORCE."""

    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of these texts, each with its end token, scored under the current parameters."""
