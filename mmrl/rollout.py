"""`Rollout`: a batch of trajectories with all that training reads of them, and the record of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.rollout_request import RowStart


@runtime_checkable
class RowRecording(Protocol):
    """The data that a policy needs to replay a rollout. Only the policy that made it reads it."""

    def select(self, rows: Sequence[int]) -> RowRecording:
        """Return the recording of these rows, in this order (capability SELECT_ROWS)."""


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
