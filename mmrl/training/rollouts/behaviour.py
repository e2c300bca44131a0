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
class NewestBehaviour:
    """The newest parameters of the trainer, which the sampling thread adopts while it samples."""

    sampler: Policy
    _offered: Behaviour | None = field(default=None, init=False)  # by the trainer; one that was not taken is replaced
    _adopted: list[Behaviour] = field(default_factory=list, init=False)  # since `begin`, oldest first

    def offer(self, behaviour: Behaviour) -> None:
        """Offer parameters to the sampling thread, from another one."""
        self._offered = behaviour

    def begin(self, scheduled: Behaviour) -> Behaviour:
        """Load the newest of the scheduled, the adopted and the offered parameters before an iteration is sampled."""
        known = [scheduled, *self._adopted[-1:], *([] if self._offered is None else [self._offered])]
        newest = max(known, key=lambda each: each.version)
        newest.load_into(self.sampler)
        self._adopted = [newest]
        return newest

    def take(self) -> bool:
        """Load newer parameters into the sampler, if some were offered; return whether there were."""
        offered = self._offered
        if offered is None or offered.version <= self._adopted[-1].version:
            return False
        offered.load_into(self.sampler)
        self._adopted.append(offered)
        return True

    @contextmanager
    def each(self) -> Iterator[Iterator[Behaviour]]:
        """Return a context with the parameters that were loaded since `begin`, each of which the sampler has in turn;
        afterwards it has the newest again."""

        def loaded() -> Iterator[Behaviour]:
            for behaviour in self._adopted:
                behaviour.load_into(self.sampler)
                yield behaviour

        try:
            yield loaded()
        finally:
            self._adopted[-1].load_into(self.sampler)


@dataclass
class BehaviourSchedule:
    """The rule by which iteration i is sampled with the parameters after max(0, i - lag) iterations."""

    policy: Policy
    lag: int
    sampling_weights: Callable[[], AbstractContextManager[Any]]  # of the objective: its old policy
    _kept: dict[int, Behaviour] = field(default_factory=dict, init=False)  # by the iterations done before

    def note(self, iteration: int) -> Behaviour:
        """Copy the present parameters at the beginning of an iteration, and return them."""
        with self.sampling_weights():
            live = self.policy.parameters_to_train()
            values = {name: parameter.detach().clone() for name, parameter in live.items()}
        self._kept[iteration] = found = Behaviour(self.policy.version, values)
        return found

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
