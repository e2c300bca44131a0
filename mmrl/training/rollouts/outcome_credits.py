"""Rollouts whose decisions have credit by the outcome of their answer (OREAL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.algorithms.outcome_credit import TokenImportance, outcome_credit, token_importance
from mmrl.config.algorithms.outcome_learning import OREALConfig
from mmrl.errors import ConfigError
from mmrl.trained_models import Critic
from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import trained_decisions
from mmrl.training.rollouts.exchange import shared_values
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class OutcomeCredits(DerivedSource):
    """A source that gives the decisions of another source's rollouts credit by outcome and importance."""

    source: ExperienceSource
    config: OREALConfig
    critic: Critic | None = None

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience with new advantages of decisions.

        Metrics: `right_share`, of the answers that could be scored; with a critic `importance/right` and
        `importance/wrong`, the mean importance of the decisions of right and of wrong answers.
        """
        found = self.source.collect(iteration, progress, phases)
        with phases("rollout"), torch.no_grad():
            whole = self._importance(found.micro_batches)
        batches = found.micro_batches
        right = torch.cat([self._right(batch) for batch in batches])
        advantages = torch.cat([batch.advantages.cpu().float() for batch in batches])
        masks = [trained_decisions(batch).cpu() for batch in batches]
        mask = _stacked(masks)
        credit = outcome_credit(advantages, right, mask, self.config.negatives, whole, self.config.shaped)
        sizes = [batch.rollout.rows for batch in batches]
        credited = [
            replace(batch, step_advantages=part[:, : own.shape[1]].to(batch.step_advantages))
            for batch, part, own in zip(batches, credit.split(sizes), masks, strict=True)
        ]
        return Experience(credited, found.metrics | _metrics(right, mask, whole), found.gap)

    def _right(self, batch: MicroBatch) -> Tensor:
        if batch.totals is None:
            raise ConfigError("algorithm: oreal learns from scored answers alone")
        return batch.totals.cpu() >= self.config.threshold

    def _importance(self, batches: Sequence[MicroBatch]) -> TokenImportance | None:
        """Return the importance [R, T] of the decisions of all rows, on the CPU; None without a critic."""
        if self.critic is None:
            return None
        values = shared_values(self.critic, [batch.rollout for batch in batches])
        found = []
        for batch, each in zip(batches, values, strict=True):
            mask = trained_decisions(batch)
            found.append(token_importance(each.to(mask.device), mask, self.config.importance_from))
        return TokenImportance(
            _stacked([each.right.cpu() for each in found]), _stacked([each.wrong.cpu() for each in found])
        )


def _stacked(parts: list[Tensor]) -> Tensor:
    """Return [R, T] of parts [B, t] with zeros at the ends of shorter ones."""
    most = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[1])) for part in parts])


def _metrics(right: Tensor, mask: Tensor, importance: TokenImportance | None) -> dict[str, float]:
    scored = mask.any(1)
    found = {"right_share": right[scored].float().mean().item() if scored.any() else 0.0}
    if importance is not None:
        for name, values, rows in (("right", importance.right, right), ("wrong", importance.wrong, ~right)):
            if (own := mask & rows[:, None]).any():
                found[f"importance/{name}"] = values[own].mean().item()
    return found
