"""The parameters that answers are sampled with while a run overlaps rollouts and updates (behaviour policies)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.errors import RunError
from mmrl.policy import Policy


class Cancelled(RuntimeError):
    """The run has ended, so that no further answers are sampled."""


@dataclass
class Cancellation:
    """A request to stop, which the sampling thread reads before each call of the model."""

    requested: bool = False

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Raise `Cancelled` after a request; else do nothing."""
        if self.requested:
            raise Cancelled("the run has ended")
        yield


@dataclass(frozen=True)
class Behaviour:
    """The trained parameters at one moment."""

    version: int  # updates before
    values: Mapping[str, Tensor]

    @torch.no_grad()
    def load_into(self, sampler: Policy) -> None:
        """Copy the values into the trained parameters of the same names; rollouts are then of this version."""
        for name, parameter in sampler.parameters_to_train().items():
            parameter.copy_(self.values[name])
        sampler.version = self.version


@dataclass
class BehaviourSchedule:
    """The rule by which iteration i is sampled with the parameters after max(0, i - lag) iterations."""

    policy: Policy
    lag: int
    sampling_weights: Callable[[], AbstractContextManager[Any]]  # of the objective: its old policy
    _kept: dict[int, Behaviour] = field(default_factory=dict, init=False)  # by the iterations done before

    def note(self, iteration: int) -> None:
        """Copy the present parameters at the beginning of an iteration."""
        with self.sampling_weights():
            live = self.policy.parameters_to_train()
            values = {name: parameter.detach().clone() for name, parameter in live.items()}
        self._kept[iteration] = Behaviour(self.policy.version, values)

    def of(self, iteration: int) -> Behaviour:
        """Return the parameters that an iteration is sampled with.

        Raises:
            RunError: a checkpoint lacks them.
        """
        done = max(0, iteration - self.lag)
        if done not in self._kept:
            raise RunError(
                f"the checkpoint lacks the parameters after {done} iterations, which iteration {iteration + 1} is "
                "sampled with: run.overlap.lag was changed; resume with the value of the run"
            )
        return self._kept[done]

    def forget(self, iteration: int) -> None:
        """Free the parameters that no iteration after this one is sampled with."""
        self._kept = {done: each for done, each in self._kept.items() if done > iteration - self.lag}

    def tensors(self) -> dict[str, Tensor]:
        """Return what is kept, by names `<iterations done>.<updates done>.<parameter>`."""
        return {
            f"{done}.{behaviour.version}.{name}": value
            for done, behaviour in self._kept.items()
            for name, value in behaviour.values.items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue exactly where `tensors` was taken."""
        found: dict[tuple[int, int], dict[str, Tensor]] = {}
        like = self.policy.parameters_to_train()
        for key, value in tensors.items():
            done, version, name = key.split(".", 2)
            found.setdefault((int(done), int(version)), {})[name] = value.to(like[name].device)
        self._kept = {done: Behaviour(version, values) for (done, version), values in found.items()}


def check_generators(sampler: Policy) -> None:
    """Raise if the first rollout of a run drew from a random generator that an update would share.

    Raises:
        RunError: naming `run.overlap`.
    """
    if getattr(sampler, "draws_globally", False):
        raise RunError(
            "run.overlap: this model draws from a random generator of the whole process, which a rollout and an "
            "update would share, so that no run could be repeated: leave run.overlap out"
        )
