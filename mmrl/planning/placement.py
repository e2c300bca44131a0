"""The place of the parameters that wins, for one number of devices or a sweep over many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from mmrl.generation.memory.memory_report import size
from mmrl.planning.assumptions import Assumptions
from mmrl.planning.prediction import PhaseSeconds, PlaceName, StepSeconds, Workload, predict

PLACES: tuple[PlaceName, ...] = get_args(PlaceName)
"""From the simplest to the one that exchanges most."""
EQUAL = 0.01
"""Places that differ by less than this share of the seconds count as equally fast."""

ObstacleOf = Callable[[PlaceName, int], str | None]
"""A function of a place and a number of devices that returns the reason why they cannot be combined, or None."""
MemoryOf = Callable[[int, int], Mapping[str, int]]
"""A function of a number of devices, and of the number of parts of a divided model, that returns bytes by place."""


@dataclass(frozen=True)
class PlaceForecast:
    """The prediction for one place on a number of devices."""

    place: PlaceName
    seconds: StepSeconds
    memory: int | None
    """Bytes of one process; None where they could not be estimated."""
    obstacle: str | None = None
    """The reason why it cannot be used; None where it can."""


@dataclass(frozen=True)
class DeviceForecast:
    """The prediction for a number of devices."""

    devices: int
    places: tuple[PlaceForecast, ...]
    best: PlaceForecast | None
    """The place that wins; None where none can be used."""
    reason: str
    """A sentence that says by what it wins, or what is in the way of all of them."""
    speedup: float | None = None
    """The seconds of one device over these, with the best place; None without one."""

    @property
    def efficiency(self) -> float | None:
        """The speed-up for each device."""
        return None if self.speedup is None else self.speedup / self.devices


def device_counts(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most`.

    >>> device_counts(12)
    [1, 2, 4, 8, 12]
    """
    if most < 1:
        raise ValueError(f"devices: {most} is not a number of devices")
    powers = [2**exponent for exponent in range(most.bit_length())]
    return [*powers, most] if powers[-1] < most else powers


def sweep(
    phases: PhaseSeconds,
    work: Workload,
    assumptions: Assumptions,
    most: int,
    memory_of: MemoryOf | None,
    capacity: int | None,
    obstacle_of: ObstacleOf = lambda place, devices: None,
) -> list[DeviceForecast]:
    """Return a prediction for each of `device_counts(most)`.

    Args:
        phases: the measured seconds.
        work: the amount of work.
        assumptions: the interconnect and what else was not measured.
        most: the largest number of devices.
        memory_of: the memory of one process; None: unknown.
        capacity: the bytes of a device; None: everything fits.
        obstacle_of: returns the reason why a place cannot be used.
    """
    alone = predict(phases, work, assumptions, 1).total
    forecasts = []
    for devices in device_counts(most):
        known = {} if memory_of is None else memory_of(devices, assumptions.parts(devices))
        places = []
        for place in PLACES if devices > 1 else PLACES[:1]:
            seconds, memory = predict(phases, work, assumptions, devices, place), known.get(place)
            obstacle = obstacle_of(place, devices)
            if obstacle is None and capacity is not None and memory is not None and memory > capacity:
                obstacle = f"needs {size(memory)}, and a device has {size(capacity)}"
            places.append(PlaceForecast(place, seconds, memory, obstacle))
        best, reason = choose(places)
        speedup = None if best is None else alone / best.seconds.total
        forecasts.append(DeviceForecast(devices, tuple(places), best, reason, speedup))
    return forecasts


def choose(places: list[PlaceForecast]) -> tuple[PlaceForecast | None, str]:
    """Return the fastest place that can be used, the simplest of equally fast ones, and the reason."""
    usable = [each for each in places if each.obstacle is None]
    if not usable:
        return None, "; ".join(f"{each.place}: {each.obstacle}" for each in places)
    fastest = min(each.seconds.total for each in usable)
    best = next(each for each in usable if each.seconds.total <= fastest * (1 + EQUAL))
    if len(places) == 1:
        return best, "one process has everything"
    if len(usable) == 1:
        return best, "the only place that can be used"
    others = [each for each in usable if each is not best]
    nearest = min(others, key=lambda each: each.seconds.total)
    more = nearest.seconds.total / best.seconds.total - 1
    if abs(more) <= EQUAL:
        return best, f"as fast as {nearest.place}, and simpler"
    exchanged = nearest.seconds.communication - best.seconds.communication
    cause = "exchanges more data" if exchanged > 0 else "repeats the optimizer in every process"
    return best, f"{nearest.place} {cause} and takes {more:.0%} longer"
