"""The interface between rollouts and objectives: `MicroBatch`, `Experience` and the protocol `ExperienceSource`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmrl.rollout import Rollout
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class MicroBatch:
    """A rollout with the advantages of its B trajectories and T decisions."""

    rollout: Rollout
    advantages: Tensor  # [B] of whole trajectories; 0 where unscored
    scored: Tensor  # [B] bool; False = the reward is unknown, or the row was not selected: leave it out of the loss
    step_advantages: Tensor  # [B, T] of single decisions: `advantages`, broadcast, unless an algorithm tells them apart
    parts: Tensor | None = None  # [C, B] the advantages of each channel by itself, if weights of channels are learnt
    sampled: bool = False  # the policy or its engine drew these rows, so that an importance correction applies
    totals: Tensor | None = None  # [B] total rewards, NaN where unscored; None: the rows were not scored
    values: Tensor | None = None  # [B, T] a critic's estimate before each decision; None: there is no critic
    returns: Tensor | None = None  # [B, T] the return that the critic is to estimate
    mean_log_probs: Tensor | None = None  # [B, T] over the vocabulary, as sampled; None: no objective reads them
    term: int | None = None  # of a mix, the one term that learns from it; None: all terms that learn from rollouts

    @classmethod
    def of_rows(cls, rollout: Rollout, advantages: Tensor) -> MicroBatch:
        """Return a micro-batch that trains on all rows, each decision with the advantage of its row [B]."""
        steps = advantages.to(rollout.mask.device)[:, None].where(rollout.mask, 0.0)
        return cls(rollout, advantages, torch.ones_like(advantages, dtype=torch.bool), steps)

    def with_every_row(self) -> MicroBatch:
        """Return this micro-batch with all rows scored, and advantages of 0."""
        found = MicroBatch.of_rows(self.rollout, torch.zeros_like(self.advantages))
        return replace(found, mean_log_probs=self.mean_log_probs)

    @property
    def scored_rows(self) -> int:
        """The number of trajectories that are trained on."""
        return int(self.scored.sum())


@dataclass(frozen=True)
class Experience:
    """The training data of one iteration."""

    micro_batches: list[MicroBatch]
    metrics: dict[str, float]
    gap: float | None = None  # the replay gap, where a copy of the policy sampled and measured it


class ExperienceSource(Protocol):
    """A source of experience, iteration by iteration. Its state is saved in checkpoints."""

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience of an iteration; `progress` is the share of training that is done, in [0, 1]."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, fit for JSON."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""


class DerivedSource:
    """The base of a source that changes the experience of another one, and has no state beside that one's."""

    source: ExperienceSource

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the other source."""
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)
