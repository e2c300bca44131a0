"""Training in stages, such as imitation before reinforcement learning, or two models that learn in turn.

    source = StagedSource([Stage(demonstrations, imitation, iterations=50), Stage(rollouts, policy_gradient)])
    TrainingLoop(source=source, objective=StagedObjective(source), ...)

The number of the iteration determines the stage, so a resumed run continues in the right one. Stages that train the
same model share its reference (the parameters that the run began with), its optimizer and its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmrl.config.named_models import POLICY
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
    iterations: int | None = None  # each time that its turn comes; None: to the end
    model: str = POLICY  # the model that samples and learns, by its name in the run
    lr_scale: float = 1.0  # the factor on the learning rate
    begin: Callable[[], None] | None = None  # what comes first each time that its turn comes, such as other parameters


class StagedSource:
    """A source that collects from the source of the current stage."""

    def __init__(self, schedule: Sequence[Stage]) -> None:
        """`schedule` has the stages in order; one that recurs goes on where it was left.

        Raises:
            ValueError: there are no stages, or one before the last has no number of iterations.
        """
        if not schedule or any(stage.iterations is None for stage in schedule[:-1]):
            raise ValueError("stages need at least one, and a number of iterations for each but the last")
        self.schedule = list(schedule)
        self.stages: list[Stage] = []
        """All stages, each once, in the order of their first turns."""
        for stage in schedule:
            if not any(stage is known for known in self.stages):
                self.stages.append(stage)
        self.now = self.schedule[0]
        """The stage of the last collected iteration."""

    def place(self, iteration: int) -> tuple[int, int]:
        """Return the number of an iteration's stage in the schedule, and the iteration within it; both from 0."""
        for number, stage in enumerate(self.schedule[:-1]):
            if iteration < (stage.iterations or 0):
                return number, iteration
            iteration -= stage.iterations or 0
        return len(self.schedule) - 1, iteration

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience of an iteration. Adds the metric `stage`, the number of the stage, from 0."""
        turn, within = self.place(iteration)
        self.now = self.schedule[turn]
        if not within and self.now.begin is not None:
            self.now.begin()
        if turn and not within:
            self.now.objective.begin()
        experience = self.now.source.collect(iteration, progress, phases)
        number = next(number for number, stage in enumerate(self.stages) if stage is self.now)
        return replace(experience, metrics=experience.metrics | {"stage": float(number)})

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all sources by the number of the stage."""
        return {str(number): stage.source.state_dict() for number, stage in enumerate(self.stages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, stage in enumerate(self.stages):
            stage.source.load_state_dict(state[str(number)])


class StagedObjective(Objective):
    """An objective that calls the objective of the current stage."""

    def __init__(self, source: StagedSource) -> None:
        self._source = source

    @property
    def needs(self) -> frozenset[Capability]:  # type: ignore[override]  # they change with the stage
        """The capabilities that the current stage's objective needs."""
        return self._source.now.objective.needs

    @property
    def trained(self) -> tuple[str, ...]:  # type: ignore[override]  # they change with the stage
        """The models that the current stage trains."""
        stage = self._source.now
        return stage.objective.trained if stage.model == POLICY else (stage.model,)

    @property
    def lr_scale(self) -> float:  # type: ignore[override]  # it changes with the stage
        """The factor of the current stage on the learning rate."""
        return self._source.now.lr_scale

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
