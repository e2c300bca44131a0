"""Training in stages, such as imitation before reinforcement learning.

    source = StagedSource([Stage(demonstrations, imitation, iterations=50), Stage(rollouts, policy_gradient)])
    TrainingLoop(source=source, objective=StagedObjective(source), ...)

The number of the iteration determines the stage, so a resumed run continues in the right one. All stages share the
policy, its reference (the parameters that the run began with), the optimizer and its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmrl.nested_state import state_of_part
from mmrl.policy import Capability
from mmrl.training.experience import Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class Stage:
    """A source, an objective and the number of iterations to train with them."""

    source: ExperienceSource
    objective: Objective
    iterations: int | None = None  # None: to the end


class StagedSource:
    """A source that collects from the source of the current stage."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """
        Raises:
            ValueError: there are no stages, or one before the last has no number of iterations.
        """
        if not stages or any(stage.iterations is None for stage in stages[:-1]):
            raise ValueError("stages need at least one, and a number of iterations for each but the last")
        self.stages = list(stages)
        self.now = self.stages[0]
        """The stage of the last collected iteration."""

    def at(self, iteration: int) -> Stage:
        """Return the stage of an iteration."""
        for stage in self.stages[:-1]:
            if iteration < (stage.iterations or 0):
                return stage
            iteration -= stage.iterations or 0
        return self.stages[-1]

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience of an iteration. Adds the metric `stage`, from 0."""
        self.now = self.at(iteration)
        experience = self.now.source.collect(iteration, progress, phases)
        return Experience(experience.micro_batches, experience.metrics | {"stage": float(self.stages.index(self.now))})

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all sources by the number of the stage."""
        return {str(number): stage.source.state_dict() for number, stage in enumerate(self.stages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, stage in enumerate(self.stages):
            stage.source.load_state_dict(state[str(number)])


class StagedObjective(Objective):
    """An objective that calls the objective of the current stage."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(self, source: StagedSource) -> None:
        """
        Raises:
            ValueError: an objective needs no log-probabilities, without which the replay gap is not measured.
        """
        if any(Capability.LOG_PROBS not in stage.objective.needs for stage in source.stages):
            raise ValueError("every stage's objective must be one on log-probabilities")
        self._source = source

    @property
    def trained(self) -> tuple[str, ...]:  # type: ignore[override]  # it changes with the stage
        return self._source.now.objective.trained

    def sampling_weights(self) -> AbstractContextManager[None]:
        return self._source.now.objective.sampling_weights()

    def loss_normalizer(self, batch: MicroBatch) -> float:
        return self._source.now.objective.loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        self._source.now.objective.backward(batch, share, seed, metrics)

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        self._source.now.objective.accumulate(batches, factor, seeds, metrics, gathers_in_calls)

    def finish_iteration(self, updates: int) -> None:
        self._source.now.objective.finish_iteration(updates)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors of all objectives by the number of the stage and their name."""
        return {
            f"{number}.{name}": tensor
            for number, stage in enumerate(self._source.stages)
            for name, tensor in stage.objective.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for number, stage in enumerate(self._source.stages):
            stage.objective.load_state_dict(state_of_part(state, f"{number}."))
