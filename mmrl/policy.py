"""The interface between models and training: `Policy`, `Rollout`, `RolloutRequest` and `Capability`.

`mmrl.training` knows models through this file alone. A denoising step and a token are both *decisions* with a
log-probability, so one loop trains a video diffusion model and a vision-language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmrl.data.sample import Sample


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
class RowStart:
    """The start of some rows of a group, beside their sample: a forced beginning, another prompt, other limits.

    Rows that start alike are a sub-group. Nothing here is a decision of the policy, so none of it is learnt from; a
    beginning that is learnt from is a demonstration (`data.demonstrations`).

    Raises:
        ValueError: no token may be written, or none is sampled at the temperature.
    """

    label: str = ""
    """The name of the sub-group, in metrics and for rewards."""
    prefix: str = ""
    """The beginning of the answer. The prompt ends with it, and the text of the answer begins with it."""
    prompt: str | None = None
    """The text that the policy reads instead of the sample's. Rewards read the sample, with its own prompt."""
    max_new_tokens: int | None = None
    """The most tokens of an answer, or of each turn, after the prefix; None: as the policy's sampling says."""
    temperature: float | None = None
    """None: as the policy's sampling says."""
    turns: tuple[str, ...] = ()
    """The first turns of an episode."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens of a row's start is {self.max_new_tokens}: at least one token is written")
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"the temperature of a row's start is {self.temperature}: it must be above 0")

    @property
    def limits(self) -> tuple[int | None, float | None]:
        """The settings of sampling, which all rows of a call share."""
        return self.max_new_tokens, self.temperature

    def sample(self, sample: Sample) -> Sample:
        """Return the sample as the policy reads it: of a conversation, the text of the last user message is another."""
        if self.prompt is None:
            return sample
        places = [place for place, turn in enumerate(sample.messages) if turn.get("role", "user") == "user"]
        if not places:
            return replace(sample, prompt=self.prompt)
        messages = list(sample.messages)
        content = messages[places[-1]].get("content")
        text: Any = self.prompt
        if not isinstance(content, str):
            media = [part for part in content or () if part.get("type") in ("image", "video")]
            text = [*media, {"type": "text", "text": self.prompt}]
        messages[places[-1]] = {**messages[places[-1]], "content": text}
        return replace(sample, messages=tuple(messages))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, and the label; fit for JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        found = {name: value for name, value in values.items() if name == "label" or value not in ("", None, ())}
        return found | ({"turns": list(self.turns)} if self.turns else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowStart:
        """Return the start that `as_dict` returned."""
        return cls(**{**values, "turns": tuple(values.get("turns", ()))})


@dataclass(frozen=True)
class PromptMixture:
    """A second prompt that guides the drawing of a sample, beside the sample's own (Parrot, arXiv:2401.05675)."""

    prompt: str
    share: float
    """Its share of the conditional prediction, in [0, 1]; the rest follows the sample's own prompt."""


@dataclass(frozen=True)
class RolloutRequest:
    """A request for `n` trajectories of one sample. Group sizes may differ between the requests of one call."""

    sample: Sample
    n: int
    group: int
    """The group these trajectories belong to; two requests may share a group (it was split over micro-batches, or its
    rows start differently)."""
    start: RowStart | None = None
    """The start of these trajectories; None: the sample alone. Its limits are equal for all requests of a call."""
    shared_seed: int | None = None
    """The seed of what all calls of an iteration share, such as which steps explore: a group may span two calls.
    None means the call's own seed."""
    iteration: int = 0
    """The number of finished training iterations; schedules of exploring steps read it."""
    keep_means: bool = False
    """True keeps the mean of each decision, as large as its latents (capability MOMENTS)."""
    max_turns: int | None = None
    """The largest number of actions of an episode; None: as its environment says. Equal for all requests of one
    call."""
    sampling: Any = None
    """The policy's own sampling configuration; None is its default. Equal for all requests of one call."""
    mixture: PromptMixture | None = None
    """A second prompt that guides what is drawn, for rollouts that are not learnt from; None: the sample's alone. Its
    share is equal for all requests of one call. Pipelines alone read it."""


@dataclass(frozen=True)
class TargetText:
    """A completion that the policy did not write: a demonstration, or one side of a preference pair."""

    sample: Sample
    text: str
    group: int
    token_ids: tuple[int, ...] | None = None
    """The exact tokens of the text; None tokenises `text` and appends an end token."""
    turns: tuple[str, ...] = ()
    """The texts of all turns of an episode, instead of `text`; the policy's environment answers them."""
    start: RowStart | None = None
    """The start of the row; the tokens are those after its prefix. Temperatures of a call are equal."""
    turn_tokens: tuple[tuple[int, ...], ...] = ()
    """The exact tokens of all turns of an episode, instead of `turns`."""
    prefix: str = ""
    """The beginning of the completion, before `text`: it is read, and none of its tokens is a decision."""


@runtime_checkable
class RowRecording(Protocol):
    """The data that a policy needs to replay a rollout. Only the policy that made it reads it."""

    def select(self, rows: Sequence[int]) -> RowRecording:
        """Return the recording of these rows, in this order (capability SELECT_ROWS)."""


def batch_requests(
    samples: Sequence[Sample], n: int, rows: int, shared_seed: int | None = None, sampling: Any = None
) -> list[list[RolloutRequest]]:
    """Request n trajectories of each sample, in calls of at most `rows` trajectories (`chunk_requests`)."""
    requests = [
        RolloutRequest(sample, n, group, shared_seed=shared_seed, sampling=sampling)
        for group, sample in enumerate(samples)
    ]
    return chunk_requests(requests, rows)


def row_starts(requests: Sequence[RolloutRequest]) -> list[RowStart | None] | None:
    """Return what each trajectory of a call starts with; None: every one with its sample alone."""
    found = [request.start for request in requests for _ in range(request.n)]
    return found if any(start is not None for start in found) else None


def chunk_requests(requests: Sequence[RolloutRequest], rows: int) -> list[list[RolloutRequest]]:
    """Split requests into calls of `rows` trajectories; a group may span two calls.

    A sample with conditions (images, videos) shares no call with other samples, and a request none with requests of
    other limits (`RowStart.limits`); their last calls may be shorter. Calls are in the order of their first requests.
    """
    calls: list[list[RolloutRequest]] = []
    last: dict[tuple[int | None, float | None], tuple[list[RolloutRequest], int]] = {}  # by limits, with its room
    for request in requests:
        limits = (None, None) if request.start is None else request.start.limits
        call, room = last.get(limits, ([], 0))
        left, room = request.n, 0 if request.sample.conditions else room
        while left:
            if not room:
                call, room = [], rows
                calls.append(call)
            now = min(left, room)
            call.append(replace(request, n=now))
            left, room = left - now, room - now
        last[limits] = (call, 0 if request.sample.conditions else room)
    return calls


class EndOfEpisode(StrEnum):
    """The reason why an episode ended."""

    OVER = "over"
    """The environment ended it, or its largest number of turns was reached."""
    CUT_OFF = "cut_off"
    """The last turn had no end token."""
    CONTEXT = "context"
    """Another turn would not have fitted into the context."""


@dataclass(frozen=True)
class TurnReward:
    """A reward that an environment gave for one turn."""

    turn: int  # from 0, as in `Rollout.channel`
    name: str
    value: float


@dataclass(frozen=True)
class EpisodeRecord:
    """The texts, observations and outcome of a row of several turns."""

    texts: tuple[str, ...]  # of each turn of the policy
    observations: tuple[Any, ...]  # between them, as the environment gave them (`mmrl.environments.Observation`)
    outcome: Mapping[str, Any]
    events: tuple[TurnReward, ...]
    info: tuple[Mapping[str, float], ...]  # of each turn: measured, never rewarded
    end: EndOfEpisode
    space: str | None = None  # of points and boxes in the texts, to draw them; None: the environment names none
    forced: tuple[tuple[str, Any], ...] = ()  # the turns before them that were forced, each with its observation

    @property
    def void(self) -> str | None:
        """The kind of failure after which the outcome says nothing about the policy; None: it is valid."""
        kind = self.outcome.get("void")
        return None if kind is None else str(kind)


@dataclass
class Rollout:
    """A batch of trajectories: B rows, T decisions. One rollout is one replay is one micro-batch."""

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
    means: Tensor | None = None  # [B, T, ...] float32, of each decision as sampled, with `RolloutRequest.keep_means`
    branches: Tensor | None = None  # [B, T + 1] int64: the first row of those that share a row's beginning, and then
    # each of its decisions; None: no rows share any
    starts: list[RowStart | None] | None = None  # B of them; None: every row started with its sample alone
    episodes: list[EpisodeRecord] | None = None  # B of them, where an environment answered; then `media` are the texts
    # of the last turns, and `channel` counts turns
    versions: Tensor | None = None  # [B, T] int64: the updates before the weights that wrote each decision, where they
    # changed within an answer; None: `policy_version` of all
    drawn: Rollout | None = None  # of a painter, row by row, where the texts of this rollout were drawn; then `media`
    # are its pictures, and the prompts of its samples are the texts
    remote: bool = False  # True: another process made it; it has no recording, its tensors are on the CPU and pictures
    # in `media` are thumbnails

    @property
    def rows(self) -> int:
        """The batch size B."""
        return self.log_probs.shape[0]

    def select(self, rows: Sequence[int]) -> Rollout:
        """Return a rollout of these rows, in this order (capability SELECT_ROWS).

        What was drawn of their texts is left out.

        Raises:
            ValueError: the policy can only replay all rows of a rollout.
        """
        if not self.remote and not isinstance(self.recording, RowRecording):
            raise ValueError("this policy cannot replay a subset of rows: it replays all rows of a call")
        index = torch.as_tensor(rows, dtype=torch.long)
        return replace(
            self,
            samples=[self.samples[row] for row in rows],
            group_index=self.group_index[index.to(self.group_index.device)],
            log_probs=self.log_probs[index.to(self.log_probs.device)],
            mask=self.mask[index.to(self.mask.device)],
            channel=self.channel[index.to(self.channel.device)],
            media=[self.media[row] for row in rows],
            recording=None if self.remote else self.recording.select(rows),
            token_ids=None if self.token_ids is None else [self.token_ids[row] for row in rows],
            means=None if self.means is None else self.means[index.to(self.means.device)],
            starts=None if self.starts is None else [self.starts[row] for row in rows],
            episodes=None if self.episodes is None else [self.episodes[row] for row in rows],
            versions=None if self.versions is None else self.versions[index.to(self.versions.device)],
            drawn=None,  # a painter replays all rows of a call
        )


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
