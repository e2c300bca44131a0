"""What every objective offers the loop."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from torch import Tensor

from mmrl.config.algorithm import ExperienceKind
from mmrl.errors import ConfigError
from mmrl.policy import Capability, Policy
from mmrl.training.experience import MicroBatch


class MetricAccumulator:
    """Running means and maxima of numbers that come micro-batch by micro-batch."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}

    def mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add to a mean."""
        self._sums[name] += value * weight
        self._counts[name] += weight

    def maximum(self, name: str, value: float) -> None:
        """Raise a maximum; once NaN, it stays NaN."""
        known = self._maxima.get(name, value)
        self._maxima[name] = value if math.isnan(value) else max(known, value) if not math.isnan(known) else known

    def absorb(self, other: MetricAccumulator, without: tuple[str, ...] = ()) -> None:
        """Take in what another has gathered, but for the names in `without`."""
        for name, total in other._sums.items():
            if name not in without:
                self._sums[name] += total
                self._counts[name] += other._counts[name]
        for name, value in other._maxima.items():
            if name not in without:
                self.maximum(name, value)

    def values(self) -> dict[str, float]:
        """All numbers by name."""
        means = {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}
        return means | self._maxima


class Objective(Protocol):
    """A loss on the powers of a policy."""

    needs: ClassVar[frozenset[Capability]]

    def sampling_weights(self) -> AbstractContextManager[None]:
        """While open, the policy computes with the parameters that rollouts are drawn with."""
        ...

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """How much there is to learn from in a micro-batch: what its loss is the mean over (rows, tokens, pairs)."""
        ...

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate `share` times the micro-batch's loss into the policy's parameters.

        `share` is its part of the update's `loss_normalizer`, times the loss scale, so that the gradient does not
        depend on how it is cut into micro-batches.
        """
        ...

    def finish_iteration(self, updates: int) -> None:
        """Called after an iteration's last update; `updates` is the number of updates so far."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


def trained_decisions(batch: MicroBatch) -> Tensor:
    """[B, T] bool: the policy's own decisions in rows that could be scored."""
    mask = batch.rollout.mask
    return mask & batch.scored.to(mask.device)[:, None]


def uses_velocity_loss(capabilities: frozenset[Capability]) -> bool:
    """Whether a policy of these powers learns from given answers by its velocities rather than by log-probabilities."""
    return Capability.PREDICT_VELOCITY in capabilities and Capability.TEACHER_FORCE not in capabilities


def check_compatible(objective: type[Objective], policy: type[Policy], experience: ExperienceKind = "rollouts") -> None:
    """Refuse an objective, or what it learns from, that needs powers the policy lacks; before a model is loaded.

    Raises:
        ConfigError: naming the missing powers.
    """
    if missing := objective.needs - policy.capabilities:
        names = ", ".join(sorted(missing))
        raise ConfigError(f"{objective.__name__} needs {names}, which {policy.__name__} does not have")
    if experience != "rollouts" and not policy.capabilities & {Capability.TEACHER_FORCE, Capability.ENCODE_MEDIA}:
        raise ConfigError(f"{policy.__name__} cannot learn from {experience}: it lacks the capability teacher_force")
