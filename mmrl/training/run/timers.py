"""Time and peak memory of the phases of an iteration."""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from mmrl.distributed import processes
from mmrl.distributed.position import Position, position


class Phases:
    """A recorder of seconds and peak memory by phase. On a CPU the peak is that of the process since its start."""

    def __init__(self, place: Position = position) -> None:
        """`place` learns of each phase; a thread beside the main one has another place."""
        self._place = place
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._memory: defaultdict[str, float] = defaultdict(float)
        self._processor = time.process_time()
        self._waited, self._exchanged = processes.seconds_waited(), processes.bytes_exchanged()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure the block under a name; blocks of one name add up."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        try:
            with self._place.phase(name):
                yield
        finally:
            self._seconds[name] += time.perf_counter() - started
            self._memory[name] = max(self._memory[name], _peak_mib())

    @property
    def total_seconds(self) -> float:
        """The seconds of all phases."""
        return sum(self._seconds.values())

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase by its name."""
        return dict(self._seconds)

    def metrics(self) -> dict[str, float]:
        """Return `seconds/<phase>`, `memory_mib/<phase>` and `seconds/cpu`.

        `seconds/cpu` is the processor time of the process since this object was made, on all cores; unlike the time of
        a clock it does not depend on other programs. With several processes, `seconds/communication` is the part of the
        phases in which this one waits for the others or exchanges data with them, and `exchanged_mib` the
        size of the tensors that it gathers or adds up.
        """
        seconds = {f"seconds/{name}": value for name, value in self._seconds.items()}
        seconds["seconds/cpu"] = time.process_time() - self._processor
        if processes.size() > 1:
            seconds["seconds/communication"] = processes.seconds_waited() - self._waited
            seconds["exchanged_mib"] = (processes.bytes_exchanged() - self._exchanged) / 2**20
        return seconds | {f"memory_mib/{name}": value for name, value in self._memory.items()}


def combined(timings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest value of each of several processes' `Phases.metrics`, but the sum of their CPU times.

    >>> combined([{"seconds/update": 1.0, "seconds/cpu": 2.0}, {"seconds/update": 3.0, "seconds/cpu": 2.0}])
    {'seconds/update': 3.0, 'seconds/cpu': 4.0}
    """
    names = dict.fromkeys(name for each in timings for name in each)
    columns = {name: [each[name] for each in timings if name in each] for name in names}
    return {name: sum(values) if name == "seconds/cpu" else max(values) for name, values in columns.items()}


def _peak_mib() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
