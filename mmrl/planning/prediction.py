"""Seconds of one iteration on N devices, from the seconds of one call: arithmetic, without torch.

Calls of the policy are dealt to the processes in turn, and each process computes whole ones. So a phase lasts as long
as the process with the most calls, and processes beyond the number of calls have nothing to do. To that come the part
that every process repeats, the exchange that the place of the parameters needs, and the wait for the last process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mmrl.planning.assumptions import Assumptions

PlaceName = Literal["replicas", "window", "strict"]

OBJECT_GATHERS = 6
"""The gathers of small objects in an iteration (rollouts, scores, replay gap, metrics, timings, requests to stop), of
two collectives each."""


@dataclass(frozen=True)
class PhaseSeconds:
    """The measured seconds of one micro-batch on one device."""

    rollout: float
    """A call of the policy that samples."""
    scoring: float
    """The rewards of one call."""
    update: float
    """The forward and backward passes of one call."""
    optimizer: float
    """An optimizer update, with clipping and the moving average."""
    statistics: float
    """Advantages and metrics of one call's rows. Every process computes those of all rows."""
    check: float
    """The comparison of a replay with its rollout, and what else each process does once an iteration."""


@dataclass(frozen=True)
class Workload:
    """The amount of work in an iteration."""

    calls: int
    """Calls of the policy in an iteration's rollout, and micro-batches of a pass over them."""
    rows: int
    """Trajectories of a call."""
    updates: int = 1
    """Optimizer updates in a pass."""
    epochs: int = 1
    calls_together: int = 1
    """Consecutive calls that go to one process, because a reward compares the answers of a group."""
    gradient_bytes: int = 0
    """Gradients of all trained parameters."""
    placed_bytes: int = 0
    """Parameters of the models that `window` and `strict` divide, frozen ones included."""
    copy_bytes: int = 0
    """A reference and an old policy, which are gathered with the parameters."""
    blocks: int = 1
    """The blocks that `strict` gathers one after another."""
    rollout_forwards: int = 0
    """Calls of the divided model in one call of the policy."""
    update_forwards: int = 0
    """The same in one update call, without gradients."""
    update_backwards: int = 0
    """The same with gradients: each has a forward and a backward pass."""
    experience_bytes: int = 0
    """The data of a rollout that the other processes get."""

    @property
    def units(self) -> int:
        """The number of pieces that calls can be dealt in."""
        return -(-self.calls // self.calls_together)

    def busiest(self, first: int, stop: int, devices: int) -> int:
        """Return the most calls that one process has among those numbered `first` to `stop`.

        >>> Workload(calls=10, rows=1).busiest(0, 10, 4), Workload(calls=12, rows=1, calls_together=3).busiest(0, 12, 2)
        (3, 6)
        """
        shares = Counter(number // self.calls_together % devices for number in range(first, stop))
        return max(shares.values(), default=0)

    def update_calls(self, devices: int) -> list[int]:
        """Return the calls of the busiest process in each update of a pass."""
        cuts = [round(number * self.calls / self.updates) for number in range(self.updates + 1)]
        return [self.busiest(first, stop, devices) for first, stop in pairwise(cuts)]


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of an iteration by purpose."""

    rollout: float
    scoring: float
    update: float
    optimizer: float
    repeated: float
    communication: float
    lateness: float

    @property
    def total(self) -> float:
        """The seconds of the iteration."""
        parts = self.rollout, self.scoring, self.update, self.optimizer, self.repeated
        return sum(parts) + self.communication + self.lateness


def predict(
    phases: PhaseSeconds, work: Workload, assumptions: Assumptions, devices: int, place: PlaceName = "replicas"
) -> StepSeconds:
    """Return the seconds of an iteration on some devices; with one device all places are equal."""
    if devices < 1:
        raise ValueError(f"devices: {devices} is not a number of devices")
    most = work.busiest(0, work.calls, devices)
    busy = min(devices, work.units)
    per_update = work.update_calls(devices)
    optimizer_updates = work.epochs * len(per_update)
    late = assumptions.lateness(phases.rollout + phases.scoring, most, busy)
    late += work.epochs * sum(assumptions.lateness(phases.update, calls, busy) for calls in per_update)
    divided = 1 if place == "replicas" else assumptions.parts(devices)
    return StepSeconds(
        rollout=most * phases.rollout,
        scoring=phases.scoring * (1 + (most - 1) * (1 - assumptions.scoring_overlap)),
        update=work.epochs * sum(per_update) * phases.update,
        optimizer=optimizer_updates * phases.optimizer / divided,
        repeated=work.calls * phases.statistics + phases.check,
        communication=0.0 if devices == 1 else exchange_seconds(work, assumptions, devices, place),
        lateness=late,
    )


def exchange_seconds(work: Workload, assumptions: Assumptions, devices: int, place: PlaceName) -> float:
    """Return the seconds of an iteration in which processes exchange data.

    In every place the processes gather what others need of the rollouts, and metrics. `replicas`: gradients are added
    up once an update. `window`: parameters and copies are gathered for the rollouts and again for each update, and sums
    of gradients get to the parts. `strict`: every call of the model gathers all blocks, every backward pass gathers
    them again and sends sums of gradients.
    """
    updates = work.epochs * work.updates
    shared = assumptions.gather_seconds(work.calls * work.experience_bytes, devices, rounds=2 * OBJECT_GATHERS)
    if place == "replicas":
        return shared + updates * assumptions.all_reduce_seconds(work.gradient_bytes, devices)
    parts = assumptions.parts(devices)
    if place == "window":
        whole = assumptions.gather_seconds(work.placed_bytes + work.copy_bytes, parts)
        return (
            shared + (1 + updates) * whole + updates * assumptions.reduce_to_parts_seconds(work.gradient_bytes, devices)
        )
    blocks = assumptions.gather_seconds(work.placed_bytes, parts, rounds=work.blocks)
    sums = assumptions.reduce_to_parts_seconds(work.gradient_bytes, devices, rounds=work.blocks)
    sampled = work.busiest(0, work.calls, devices) * work.rollout_forwards * blocks
    learned = (work.update_forwards + 2 * work.update_backwards) * blocks + work.update_backwards * sums
    update_calls = work.epochs * sum(work.update_calls(devices))
    return shared + (sampled + update_calls * learned) * (1 - assumptions.overlap)
