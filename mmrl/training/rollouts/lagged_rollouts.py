"""Rollouts of the next iterations, sampled by a thread while this one is learnt from.

    source = LaggedRollouts(online, sampler, schedule, iterations=100, cancellation)  # `online` samples with `sampler`
    experience = source.collect(7, ...)  # with a lag of 1, sampled with the parameters after 6 iterations
    source.close()

The schedule decides which parameters sample an iteration, not the clock, so a run can be repeated and resumed to the
bit. The trainer hands its parameters over at the beginning of each iteration, and waits for the rollouts that it learns
from next.

A checkpoint holds the parameters that the iterations in flight are sampled with, and the state of the source before the
first of them; a resumed run samples them again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmrl.distributed import processes
from mmrl.distributed.position import Position
from mmrl.errors import ConfigError
from mmrl.policy import InterruptiblePolicy, Policy
from mmrl.rewards.core.executor import DaemonPool
from mmrl.rollout import Rollout
from mmrl.training.experience import Experience, ExperienceSource
from mmrl.training.objectives.replay_passes import replayed_log_probs
from mmrl.training.rollouts.behaviour import (
    Behaviour,
    BehaviourSchedule,
    Cancellation,
    NewestBehaviour,
    check_generators,
)
from mmrl.training.run.timers import Phases

CLOSING_S = 10.0
"""Seconds that `close` waits for the thread's current call of the model, or for rewards that it waits for."""


def thread_seconds(phases: Phases, idle: float) -> dict[str, float]:
    """Return `seconds/thread_<phase>` of a sampling thread, and `seconds/thread_wait`: it had nothing to sample."""
    return {f"seconds/thread_{name}": value for name, value in (phases.seconds() | {"wait": idle}).items()}


@dataclass(frozen=True)
class _Sampled:
    """The experience of an iteration, and what its sampling left."""

    experience: Experience
    state: dict[str, Any]  # of the source, after it
    version: int
    seconds: dict[str, float]


@dataclass
class LaggedRollouts:
    """A source whose answers are sampled ahead, in order, by one thread."""

    source: ExperienceSource  # samples with `sampler`, under `cancellation.checked`
    sampler: Policy  # a copy of the policy
    schedule: BehaviourSchedule
    iterations: int  # of the run; none beyond is sampled
    cancellation: Cancellation
    newest: NewestBehaviour | None = None  # of `sampler`, if answers go on under parameters that come meanwhile
    _thread: DaemonPool = field(init=False)
    _group: Any = field(init=False)  # of the threads of all processes
    _ahead: dict[int, Future[_Sampled]] = field(default_factory=dict, init=False)  # by iteration
    _next: int | None = field(default=None, init=False)  # the next iteration to be handed over
    _state: dict[str, Any] | None = field(default=None, init=False)  # of the source, before the iterations ahead
    _ended: float | None = field(default=None, init=False)  # the time at which the thread had sampled an iteration

    def __post_init__(self) -> None:
        self._thread, self._group = DaemonPool(1, "rollouts"), processes.new_group()
        if self.newest is not None:
            if not isinstance(self.sampler, InterruptiblePolicy):
                raise ConfigError(
                    f"run.overlap.interrupt: an answer of {type(self.sampler).__name__} ends under the parameters that "
                    "it began with: leave it out"
                )
            self.sampler.adopt(self.newest.take)

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Hand the parameters over for the iteration that is `lag` later, and return the rollouts of this one.

        Adds the metrics `lag/updates`, the age of the rollouts, and those of `thread_seconds`. The phase `wait` is the
        trainer's.

        Raises:
            Exception: the thread raised it, now or while it sampled a later iteration.
        """
        with phases("wait"):
            self._hand_over(iteration)
            for each in self._ahead.values():
                if each.done() and (error := each.exception()) is not None:
                    raise error
            sampled = self._ahead[iteration].result()
        del self._ahead[iteration]
        self._state = sampled.state
        now, found = self.schedule.policy.version, sampled.experience
        age = {"lag/updates": float(now - sampled.version)}
        if self.newest is not None:
            age |= version_metrics([batch.rollout for batch in found.micro_batches], now)
        return replace(found, metrics=found.metrics | age | sampled.seconds)

    def wait_idle(self) -> None:
        """Wait until everything that was handed over is sampled, so that its rewards are free for an evaluation."""
        wait(self._ahead.values())

    def close(self) -> None:
        """End the thread after its current call of the model; its rollouts are lost."""
        self.cancellation.requested = True
        self._thread.close()
        wait([each for each in self._ahead.values() if not each.cancelled()], CLOSING_S)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the source before the iterations ahead."""
        return self.source.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters that the iterations ahead are sampled with."""
        return self.schedule.tensors()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue exactly where `tensors` was taken."""
        self.schedule.load_tensors(tensors)

    def _hand_over(self, iteration: int) -> None:
        present = self.schedule.note(iteration)
        if self.newest is not None:
            self.newest.offer(present)
        last = min(iteration + self.schedule.lag, self.iterations - 1)
        for later in range(iteration if self._next is None else self._next, last + 1):
            self._ahead[later] = self._thread.submit(partial(self._sample, later, self.schedule.of(later)))
        self._next = last + 1
        self.schedule.forget(iteration)

    def _sample(self, iteration: int, behaviour: Behaviour) -> _Sampled:
        """Sample and score an iteration, in the thread; after an error none that was handed over is sampled."""
        idle = time.perf_counter() - (self._ended or time.perf_counter())
        phases = Phases(Position())
        try:
            with processes.thread_group(self._group), self.cancellation.checked():
                if self.newest is None:
                    behaviour.load_into(self.sampler)
                else:
                    behaviour = self.newest.begin(behaviour)
                experience = self.source.collect(iteration, iteration / self.iterations, phases)
            if self._ended is None:  # the trainer waits for the first rollouts, so no other thread draws meanwhile
                check_generators(self.sampler)
            with phases("replay_check"):
                gap = self._replay_gap(experience)
            state = copy.deepcopy(self.source.state_dict())
        except BaseException:
            self.cancellation.requested = True
            raise
        self._ended = time.perf_counter()
        found = replace(experience, gap=gap)
        return _Sampled(found, state, behaviour.version, thread_seconds(phases, idle))

    def _replay_gap(self, experience: Experience) -> float | None:
        """Return the replay gap of the first new rollout of this process, under the parameters that sampled it.

        Where parameters came meanwhile, that is the first rollout in which they changed, and each decision is replayed
        under those that wrote it.
        """
        own = [batch.rollout for batch in experience.micro_batches if not batch.rollout.remote]
        if self.newest is not None and (mixed := [each for each in own if each.versions is not None]):
            changed = [each for each in mixed if version_metrics([each], each.policy_version)["lag/interrupted"]]
            return gap_by_version(self.sampler, (changed or mixed)[0], self.newest)
        fresh = next((each for each in own if each.policy_version == self.sampler.version), None)
        return None if fresh is None else self.sampler.replay_gap(fresh)


def version_metrics(rollouts: Sequence[Rollout], now: int) -> dict[str, float]:
    """Return the number of answers that were written by several versions, and that of decisions by the age of theirs.

    `now` is the version that learns. `lag/decisions_of_2` counts decisions that the parameters of two updates ago
    wrote; rollouts without versions are of one.
    """
    interrupted, ages = 0, torch.zeros(0, dtype=torch.long)
    for rollout in rollouts:
        mask = rollout.mask.cpu()
        versions = (
            torch.full(mask.shape, rollout.policy_version) if rollout.versions is None else rollout.versions.cpu()
        )
        first = versions.masked_fill(~mask, torch.iinfo(torch.long).max).amin(1)
        last = versions.masked_fill(~mask, -1).amax(1)
        interrupted += int((first < last).sum())
        ages = torch.cat([ages, now - versions[mask]])
    found = {f"lag/decisions_of_{age}": float((ages == age).sum()) for age in ages.unique().tolist()}
    return {"lag/interrupted": float(interrupted)} | found


@torch.no_grad()
def gap_by_version(sampler: Policy, rollout: Rollout, newest: NewestBehaviour) -> float:
    """Return the largest |log-prob difference| between a rollout and its replay, each decision under the parameters
    that wrote it, as `newest` has them."""
    assert rollout.versions is not None
    gaps = torch.full(rollout.mask.shape, torch.inf, device=rollout.mask.device)  # of a version that is not known
    steps = list(range(rollout.log_probs.shape[1]))
    with newest.each() as behaviours:
        for behaviour in behaviours:
            own = rollout.mask & (rollout.versions == behaviour.version)
            if own.any():
                gap = (replayed_log_probs(sampler, rollout, steps) - rollout.log_probs).abs()
                gaps = torch.where(own, gap, gaps)
    return float(gaps[rollout.mask].max())
