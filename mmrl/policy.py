"""The seam between what learns and how it learns: policies, rollouts, decisions and powers.

`mmrl.training` knows models through this file alone. A denoising step and a token are both
*decisions* with a log-probability, so one loop trains a video diffuser and a vision-language model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmrl.data.sample import Sample


class Power(StrEnum):
    """What a policy can do beyond sampling. An objective names the powers that it needs."""

    LOG_PROBS = "log_probs"
    """Replay gives the log-probability of every recorded decision, with gradients."""
    MOMENTS = "moments"
    """Decisions are Gaussian: replay also gives their mean, standard deviation and the velocity behind them."""
    PREDICT_VELOCITY = "predict_velocity"
    """`predict_velocity` at any (x_t, sigma), with gradients."""
    ADOPT_CLEAN = "adopt_clean"
    """`adopt`: clean latents that are given become a rollout, so that a few rows of many can be learnt from alone."""
    ENCODE_MEDIA = "encode_media"
    """`encode`: the clean latents of pictures that the policy did not draw."""
    DECODE_WITH_GRAD = "decode_with_grad"
    """Media with gradients, for rewards that are differentiable."""
    ENTROPY = "entropy"
    """Decisions are categorical (tokens): replay also gives their entropy."""
    TEACHER_FORCE = "teacher_force"
    """`teacher_force`: log-probabilities of a text that the policy did not write."""
    SELECT_ROWS = "select_rows"
    """A rollout can be cut to some of its rows (`Rollout.select`): rows do not depend on one another."""
    FORESEE = "foresee"
    """`foreseeing`: told beforehand what the loss's derivative will be, a replay prepares its gradients on the way."""


@dataclass(frozen=True)
class RolloutRequest:
    """n trajectories for one sample. Group sizes may differ between the requests of one call."""

    sample: Sample
    n: int
    group: int
    """The group these trajectories belong to; two requests may share a group (it was split over micro-batches)."""
    prefix: Any = None
    """Decisions that are forced rather than sampled (hints, rethinking, budgets)."""
    shared_seed: int | None = None
    """Decides what all calls of an iteration share, such as which steps explore: a group may span two calls.
    None: the call's own seed does."""
    iteration: int = 0
    """How many iterations of training lie behind: which steps explore may follow a schedule."""
    keep_means: bool = False
    """Whether the rollout keeps the mean of each decision (power MOMENTS), as large as its latents."""
    sampling: Any = None
    """The policy's own sampling configuration; None is its default. Equal for all requests of one call."""


@dataclass(frozen=True)
class GivenText:
    """A text that answers a sample and that the policy did not write: a demonstration, or one of a pair."""

    sample: Sample
    text: str
    group: int
    token_ids: tuple[int, ...] | None = None
    """Just these tokens, as they were written once; unset: those of the text, and an end token."""


@runtime_checkable
class RowRecording(Protocol):
    """What a policy keeps of a rollout, to replay it. Only the policy that made it looks inside."""

    def select(self, rows: Sequence[int]) -> RowRecording:
        """The recording of some rows, in that order (power SELECT_ROWS)."""
        ...


def plan_calls(
    samples: Sequence[Sample], n: int, rows: int, shared_seed: int | None = None, sampling: Any = None
) -> list[list[RolloutRequest]]:
    """n trajectories of each sample, as `cut_into_calls` cuts them."""
    requests = [
        RolloutRequest(sample, n, group, shared_seed=shared_seed, sampling=sampling)
        for group, sample in enumerate(samples)
    ]
    return cut_into_calls(requests, rows)


def cut_into_calls(requests: Sequence[RolloutRequest], rows: int) -> list[list[RolloutRequest]]:
    """Requests laid end to end and cut into calls of `rows` trajectories; a group may span two calls.

    A sample with conditions (pictures, videos) is drawn in calls of its own, which may be shorter.
    """
    calls: list[list[RolloutRequest]] = []
    room = 0
    for request in requests:
        left = request.n
        room = 0 if request.sample.conditions else room
        while left:
            if not room:
                calls.append([])
                room = rows
            now = min(left, room)
            calls[-1].append(replace(request, n=now))
            left, room = left - now, room - now
        room = 0 if request.sample.conditions else room
    return calls


@dataclass
class Rollout:
    """One batch of trajectories: B rows, T decisions. One rollout is one replay is one micro-batch."""

    samples: list[Sample]  # B of them, the sample that each row answers
    group_index: Tensor  # [B] int64
    log_probs: Tensor  # [B, T] float32, as sampled
    mask: Tensor  # [B, T] bool; False = not a decision of the policy (padding, std = 0), or one that `branches` shares
    channel: Tensor  # [B, T] int64; which stage, turn, agent or tool a decision belongs to
    media: list[Any]  # B images (PIL), videos (lists of PIL) or texts
    policy_version: int
    clean: Tensor | None = None  # [B, ...] x_0 in the sampling loop's own packing (pipelines)
    recording: Any = field(default=None, repr=False)  # what replay needs; only the policy that made it reads it
    token_ids: list[list[int]] | None = None  # B of them, what each text was written with (token policies)
    means: Tensor | None = None  # [B, T, ...] float32, of each decision as sampled, if a request asked to keep them
    branches: Tensor | None = None  # [B, T + 1] int64: the first row of those that share a row's beginning, and then
    # each of its decisions; None: no rows share any

    @property
    def rows(self) -> int:
        """B."""
        return self.log_probs.shape[0]

    def select(self, rows: Sequence[int]) -> Rollout:
        """Some of its rows, in that order, on their own (power SELECT_ROWS).

        Raises:
            ValueError: its policy replays all rows of a rollout or none.
        """
        if not isinstance(self.recording, RowRecording):
            raise ValueError("this policy's rollouts cannot be cut: it replays all rows of a call or none")
        index = torch.as_tensor(rows, dtype=torch.long)
        return replace(
            self,
            samples=[self.samples[row] for row in rows],
            group_index=self.group_index[index.to(self.group_index.device)],
            log_probs=self.log_probs[index.to(self.log_probs.device)],
            mask=self.mask[index.to(self.mask.device)],
            channel=self.channel[index.to(self.channel.device)],
            media=[self.media[row] for row in rows],
            recording=self.recording.select(rows),
            token_ids=None if self.token_ids is None else [self.token_ids[row] for row in rows],
            means=None if self.means is None else self.means[index.to(self.means.device)],
        )


@dataclass(frozen=True)
class Decisions:
    """Some decisions of a rollout, recomputed under the present parameters. K columns of the rollout's T."""

    columns: tuple[int, ...]  # which of the rollout's T
    log_probs: Tensor  # [B, K] float32; with a graph where gradients are enabled
    mean: Tensor | None = None  # [B, K, ...] float32 (power MOMENTS)
    std: Tensor | None = None  # [B, K] float32 (power MOMENTS)
    velocity: Tensor | None = None  # [B, K, ...] the model output that the sampler consumed (power MOMENTS)
    gain: Tensor | None = None  # [B, K] |d mean / d velocity| >= 0 (power MOMENTS); None: the scheduler's own step
    entropy: Tensor | None = None  # [B, K] float32, in nats, of the distribution that was sampled (power ENTROPY)


Visit = Callable[[Decisions], None]
"""Called once for each block of decisions during a replay; may call `backward()` before it returns."""


Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probs [M], their rows [M] int64, their columns [M] int64) -> [M]: the loss's derivative in these log-probs."""


class Policy(Protocol):
    """Something that draws or answers, and can be asked again how likely what it did was."""

    powers: frozenset[Power]  # of the class: known before any model is loaded
    version: int  # how many optimizer updates the parameters have seen; written into every rollout

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Draw sum(r.n) trajectories without gradients. Equal requests and seed give equal rollouts."""
        ...

    def replay(self, rollout: Rollout, columns: Sequence[int], visit: Visit) -> None:
        """Recompute the named decisions in order and hand them to `visit`, with a graph if gradients are enabled.

        A pipeline visits one decision at a time (K = 1), so that only one denoiser graph lives at once;
        a token policy visits all of them in one call.
        """
        ...

    def reference(self) -> AbstractContextManager[None]:
        """While open, the policy computes with the parameters that training started from."""
        ...

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """By stable name, in stable order."""
        ...

    def pace(self, name: str) -> float:
        """How fast a parameter learns, as a share of `optimizer.lr` (a vision tower may go slower than the rest)."""
        ...

    def save(self, folder: Path) -> None:
        """Write what was trained (a LoRA or whole weights) in the format of the library that loads it."""
        ...

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote."""
        ...

    def replay_gap(self, rollout: Rollout) -> float:
        """How far a replay under unchanged parameters is from the rollout: the gauge of a silent mismatch.

        max |log-prob difference| over decisions, or for rollouts without decisions (deterministic samplers)
        max |velocity difference| at a recorded step. 0 where replay repeats the rollout exactly.
        """
        ...


class VelocityPolicy(Policy, Protocol):
    """A policy with the power PREDICT_VELOCITY.

    Noise levels are a flow's, x_t = (1 - sigma) x_0 + sigma noise, and so is the velocity, noise - x_0, whatever the
    model behind the policy predicts.
    """

    def noise_level(self, place: float) -> float:
        """In (0, 1]: the level at a place in (0, 1] of those that the model was trained at, as a uniform place draws.

        `predict_velocity` is exact at these levels; models that know a thousand timesteps take the nearest of others.
        """
        ...

    def predict_velocity(self, rollout: Rollout, noisy: Tensor, sigma: float) -> Tensor:
        """The velocity of each row of `noisy` [B, ...] at noise level sigma in (0, 1], as the sampler would use it."""
        ...


class ForesightPolicy(Policy, Protocol):
    """A policy with the power FORESEE."""

    def foreseeing(self, slope: Slope) -> AbstractContextManager[None]:
        """While open, replays with gradients expect this derivative: of the very loss that is backpropagated.

        One that is clearly another costs time and memory, and changes nothing; see `mmrl_kernels.linear_logprob`.
        """
        ...


@dataclass(frozen=True)
class LiveSteps:
    """The denoising steps that are computed anew, with gradients, on the way from a rollout's noise to its media.

    Steps before them are played back from the rollout.
    """

    count: int | None = None
    """How many, at least 1; None: all. A rollout that has fewer is computed from its first step."""
    left: int = 0
    """How many steps come after them. Those are not computed: the last live one goes to x_0 in one jump (ReFL)."""
    noise_seed: int | None = None
    """Begin with the rollout's x_0, noised anew to the level of the first live step, instead of with the latents that
    the rollout had there (DRaFT-LV)."""
    detached: bool = False
    """No gradient flows into the inputs of the denoiser: only along the samplers' own sum of its answers (DRTune)."""


class DecodingPolicy(Policy, Protocol):
    """A policy with the power DECODE_WITH_GRAD."""

    def paths_kept(self) -> AbstractContextManager[None]:
        """While open, rollouts keep the latents of every step, which `decode_with_grad` begins with."""
        ...

    def decode_with_grad(self, rollout: Rollout, live: LiveSteps) -> Tensor:
        """The rollout's media [B, 3, H, W], or [B, F, 3, H, W] of videos, float32 in [0, 1]; with a graph where
        gradients are enabled. Under unchanged parameters, without `left` and `noise_seed`, they are `rollout.media`."""
        ...


class AdoptingPolicy(VelocityPolicy, Protocol):
    """A policy with the powers ADOPT_CLEAN and ENCODE_MEDIA."""

    def adopt(self, samples: Sequence[Sample], groups: Sequence[int], clean: Tensor, media: Sequence[Any]) -> Rollout:
        """A rollout without decisions whose rows answer `samples` and end in `clean` [B, ...], in the loop's packing.

        Samples with conditions must all be the same one, as in `rollout`.
        """
        ...

    def encode(self, pictures: Sequence[Any]) -> Tensor:
        """[B, ...]: the clean latents of PIL images, in the sampling loop's own packing.

        Raises:
            UnsupportedError: this kind of model cannot, even if no pictures are given.
        """
        ...


class TeachablePolicy(Policy, Protocol):
    """A policy with the power TEACHER_FORCE."""

    def teacher_force(self, given: Sequence[GivenText]) -> Rollout:
        """A rollout of given texts, each with its end token; `log_probs` are those under the present parameters."""
        ...
