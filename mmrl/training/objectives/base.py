"""`Objective`, the base of everything that an update can minimise, and the metrics that it reports.

An objective has the gradient of one micro-batch computed and added to the policy's parameters. It knows the policy by
its capabilities alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor

from mmrl.config.algorithms.base import ExperienceKind
from mmrl.config.named_models import POLICY
from mmrl.config.sampling import AnySamplingConfig
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.policy import Capability, Policy
from mmrl.rewards.core.routing import RoutedRewards
from mmrl.rewards.core.suite import RewardSuite
from mmrl.trained_models import Critic
from mmrl.training.experience import MicroBatch


class MetricAccumulator:
    """Running means and maxima of metrics over micro-batches."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}

    def mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add a value to a weighted mean."""
        self._sums[name] += value * weight
        self._counts[name] += weight

    def maximum(self, name: str, value: float) -> None:
        """Raise a maximum to `value`; once NaN, it stays NaN."""
        known = self._maxima.get(name, value)
        self._maxima[name] = value if math.isnan(value) else max(known, value) if not math.isnan(known) else known

    def absorb(self, other: MetricAccumulator, without: tuple[str, ...] = (), prefix: str = "") -> None:
        """Add the metrics of another accumulator, except the names in `without`, each with a prefix to its name."""
        for name, total in other._sums.items():
            if name not in without:
                self._sums[prefix + name] += total
                self._counts[prefix + name] += other._counts[name]
        for name, value in other._maxima.items():
            if name not in without:
                self.maximum(prefix + name, value)

    def over_processes(self) -> MetricAccumulator:
        """Return the metrics of all processes as one accumulator."""
        parts = processes.gather(self)
        if len(parts) == 1:
            return self
        found = MetricAccumulator()
        for part in parts:
            found.absorb(part)
        return found

    def values(self) -> dict[str, float]:
        """Return all metrics by name."""
        means = {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}
        return means | self._maxima


@dataclass(frozen=True)
class ObjectiveInputs:
    """The parts of a run that an objective may be built from."""

    policy: Any
    sampling: AnySamplingConfig
    rewards: RewardSuite | RoutedRewards | None = None
    """The rewards of a run that learns from scored rollouts, else None."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """The models of the run by name (`mmrl.training.named_model.NamedModel`), `policy` among them."""
    critics: Mapping[str, Critic] = field(default_factory=dict)
    """The critics of the run by name."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The trained parts of the policy's codec by name: its decoder, and the discriminator of that."""
    updates: int | None = None
    """The updates of the whole run; None: unknown, and weights stay at their first value."""


class Objective(ABC):
    """A loss on a policy; `backward` adds its gradient to the policy's parameters.

    An objective of your own defines `needs`, `loss_normalizer` and `backward`; the other methods suit an objective
    without state.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset()
    """The capabilities that the policy must have."""
    trained: tuple[str, ...] = (POLICY,)
    """The models that an update trains, by their names in the run; the first one's rollouts are learnt from."""
    lr_scale: float = 1.0
    """The factor on the learning rate of an update."""

    def __init__(self, policy: Any, config: Any) -> None:
        self._policy, self._config = policy, config

    @classmethod
    def build(cls, config: Any, inputs: ObjectiveInputs) -> Self:
        """Return the objective of an `algorithm` section."""
        return cls(inputs.policy, config)

    def sampling_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the policy computes with the parameters that rollouts are sampled with."""
        return nullcontext()

    def uses_copies(self) -> bool:
        """Return False if neither rollouts nor updates compute with the reference or an old policy."""
        return True

    @abstractmethod
    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of terms (rows, tokens, pairs) that the micro-batch's loss is the mean over."""

    @abstractmethod
    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate `share` times the micro-batch's loss into the policy's parameters.

        `share` is its part of the update's `loss_normalizer`, times the loss scale, so that the gradient does not
        depend on how an update is cut into micro-batches.
        """

    def prepare(self, batches: Sequence[MicroBatch]) -> None:  # noqa: B027
        """Run before the passes over these micro-batches of an update, while no activations are in memory."""

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        """Add `factor` times the gradient of an update's loss, the mean over all of its micro-batches.

        Args:
            batches: the micro-batches of the update; those of other processes count in the mean alone.
            factor: the scale of the loss.
            seeds: a seed for each micro-batch.
            metrics: the metrics of the update, which are added.
            gathers_in_calls: whether processes need this one's parameters in each call of the model.
        """
        self.prepare([batch for batch in batches if not batch.rollout.remote])
        amounts = [self.loss_normalizer(batch) for batch in batches]
        total = sum(amounts) or 1.0
        for batch, amount, seed in zip(batches, amounts, seeds, strict=True):
            if batch.rollout.remote:
                continue
            if gathers_in_calls and not amount:
                if any(amounts):  # others compute, and need this process's parts
                    self.backward(batch.with_every_row(), 0.0, seed, MetricAccumulator())
                continue
            self.backward(batch, factor * amount / total, seed, metrics)

    def begin(self) -> None:  # noqa: B027
        """Run before the first iteration of a later stage: other stages have changed the parameters."""

    def finish_iteration(self, updates: int) -> None:  # noqa: B027
        """Run after an iteration's last update; `updates` is the number of updates so far."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Continue exactly where `state_dict` was taken."""


def trained_decisions(batch: MicroBatch) -> Tensor:
    """Return [B, T] bool: the policy's own decisions in rows that could be scored."""
    mask = batch.rollout.mask
    return mask & batch.scored.to(mask.device)[:, None]


def uses_velocity_loss(capabilities: frozenset[Capability]) -> bool:
    """Return whether a policy learns from existing answers by velocities rather than by log-probabilities."""
    return Capability.PREDICT_VELOCITY in capabilities and Capability.TEACHER_FORCE not in capabilities


def check_compatible(objective: type[Objective], policy: type[Policy], experience: ExperienceKind = "rollouts") -> None:
    """Raise unless the policy has the capabilities that an objective and its experience need.

    Raises:
        ConfigError: naming the missing capabilities. No model is loaded.
    """
    if missing := objective.needs - policy.capabilities:
        names = ", ".join(sorted(missing))
        raise ConfigError(f"{objective.__name__} needs {names}, which {policy.__name__} does not have")
    if experience != "rollouts" and not policy.capabilities & {Capability.TEACHER_FORCE, Capability.ENCODE_MEDIA}:
        raise ConfigError(f"{policy.__name__} cannot learn from {experience}: it lacks the capability teacher_force")
