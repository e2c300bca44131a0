"""The experience of a mix: the policy's own answers, and demonstrations for the terms that imitate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mmrl.training.experience import Experience, ExperienceSource
from mmrl.training.rollouts.online import interleaved
from mmrl.training.run.timers import Phases


class MixedSource:
    """A source of rollouts, and of what single terms of a mix learn from beside them."""

    def __init__(self, rollouts: ExperienceSource, others: Mapping[int, tuple[str, ExperienceSource]]) -> None:
        """`others` maps the number of a term to its name in metrics and its source."""
        self._rollouts, self._others = rollouts, dict(others)

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return all experience of an iteration, spread evenly over its updates."""
        found = self._rollouts.collect(iteration, progress, phases)
        batches, metrics = found.micro_batches, dict(found.metrics)
        for number, (label, source) in self._others.items():
            own = source.collect(iteration, progress, phases)
            batches = interleaved(batches, [replace(batch, term=number) for batch in own.micro_batches])
            metrics |= {f"{label}/{name}": value for name, value in own.metrics.items()}
        return Experience(batches, metrics, found.gap)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rollouts and of each other source, by the number of its term."""
        return {"rollouts": self._rollouts.state_dict()} | {
            str(number): source.state_dict() for number, (_, source) in self._others.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rollouts.load_state_dict(state["rollouts"])
        for number, (_, source) in self._others.items():
            source.load_state_dict(state[str(number)])
