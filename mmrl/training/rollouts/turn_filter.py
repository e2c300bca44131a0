"""`TurnFilter`: leaves episodes with an empty turn out of the update (SimpleTIR, arXiv:2509.02479).

A turn with neither a call nor an answer is mostly written with improbable tokens, whose gradients are large. Its
episode still counts in the baseline of its group, and no decision of it is trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout
from mmrl.training.rollouts.collect import CollectedRollouts


@dataclass(frozen=True)
class TurnFilter:
    """A filter by what the environment measured of each turn."""

    below: Mapping[str, float] = field(default_factory=dict)  # a turn is empty if the measured value is less
    above: Mapping[str, float] = field(default_factory=dict)  # or more
    cut_off: bool = True  # or if it has no end token

    def __call__(self, collected: CollectedRollouts) -> tuple[CollectedRollouts, dict[str, float]]:
        """Return the rollouts without episodes with an empty turn among the trained ones, and metrics.

        Metrics: `turn_filter/share` of the trained episodes that were left out.
        """
        empty = torch.cat([self.empty_rows(rollout) for rollout in collected.scored.rollouts])
        left_out = (collected.trained & empty).sum() / collected.trained.sum().clamp(min=1)
        return replace(collected, trained=collected.trained & ~empty), {"turn_filter/share": float(left_out)}

    def empty_rows(self, rollout: Rollout) -> Tensor:
        """Return [B] bool: True for rows with an empty turn."""
        if rollout.episodes is None:
            return torch.zeros(rollout.rows, dtype=torch.bool)
        return torch.tensor([self._has_empty_turn(episode) for episode in rollout.episodes], dtype=torch.bool)

    def _has_empty_turn(self, episode: EpisodeRecord) -> bool:
        if self.cut_off and episode.end is EndOfEpisode.CUT_OFF:
            return True
        return any(
            any(turn.get(name, least) < least for name, least in self.below.items())
            or any(turn.get(name, most) > most for name, most in self.above.items())
            for turn in episode.info
        )
