"""One way of learning after another, such as imitation before reinforcement.

    source = StagedSource([Stage(demonstrations, imitation, iterations=50), Stage(rollouts, policy_gradient)])
    Trainer(source=source, objective=StagedObjective(source), ...)

The iteration says which stage it is, so a resumed run goes on in the right one. All stages share the policy, its
reference (the parameters that the run began with), the optimizer and its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmrl.policy import Capability
from mmrl.training.experience import Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class Stage:
    """What is learnt from, how, and for how long."""

    source: ExperienceSource
    objective: Objective
    iterations: int | None = None  # None: to the end


class StagedSource:
    """The experience of whichever stage an iteration belongs to."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """
        Raises:
            ValueError: there are none, or another than the last has no end.
        """
        if not stages or any(stage.iterations is None for stage in stages[:-1]):
            raise ValueError("stages need at least one, and a number of iterations for each but the last")
        self.stages = list(stages)
        self.now = self.stages[0]
        """The stage of the iteration that was collected last."""

    def at(self, iteration: int) -> Stage:
        """The stage that an iteration belongs to."""
        for stage in self.stages[:-1]:
            if iteration < (stage.iterations or 0):
                return stage
            iteration -= stage.iterations or 0
        return self.stages[-1]

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """The experience of an iteration. Adds the metric `stage`, from 0."""
        self.now = self.at(iteration)
        experience = self.now.source.collect(iteration, progress, phases)
        return Experience(experience.micro_batches, experience.metrics | {"stage": float(self.stages.index(self.now))})

    def state_dict(self) -> dict[str, Any]:
        """Of all stages' sources, by number."""
        return {str(number): stage.source.state_dict() for number, stage in enumerate(self.stages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for number, stage in enumerate(self.stages):
            stage.source.load_state_dict(state[str(number)])


class StagedObjective:
    """The objective of the stage that experience was collected for."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(self, source: StagedSource) -> None:
        """
        Raises:
            ValueError: a stage's objective works without log-probabilities, by which a replay is watched.
        """
        if any(Capability.LOG_PROBS not in stage.objective.needs for stage in source.stages):
            raise ValueError("every stage's objective must be one on log-probabilities")
        self._source = source

    def sampling_weights(self) -> AbstractContextManager[None]:
        """While open, the policy computes with the parameters that rollouts are drawn with."""
        return self._source.now.objective.sampling_weights()

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """How much there is to learn from in a micro-batch."""
        return self._source.now.objective.loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate `share` times the micro-batch's loss into the policy's parameters."""
        self._source.now.objective.backward(batch, share, seed, metrics)

    def finish_iteration(self, updates: int) -> None:
        """Called after an iteration's last update."""
        self._source.now.objective.finish_iteration(updates)

    def state_dict(self) -> dict[str, Tensor]:
        """Of all stages' objectives, by number and name."""
        return {
            f"{number}.{name}": tensor
            for number, stage in enumerate(self._source.stages)
            for name, tensor in stage.objective.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for number, stage in enumerate(self._source.stages):
            mine = {name: tensor for name, tensor in state.items() if name.startswith(f"{number}.")}
            stage.objective.load_state_dict({name.partition(".")[2]: tensor for name, tensor in mine.items()})
