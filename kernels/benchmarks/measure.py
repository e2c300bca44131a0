"""Timing and peak memory of functions that do the same work, in turns, in one process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """One candidate among others."""

    seconds: float  # median over turns: of CPU time, or of the GPU's own clock
    ratio: float  # median over turns of baseline / this one; above 1 = faster than the baseline
    peak_mib: float  # of memory taken beyond what was held before the call


def compare(calls: Mapping[str, Call], turns: int = 9, device: str = "cpu") -> dict[str, Measured]:
    """Each candidate against the first, which is the baseline. They take turns, in alternating order."""
    names = list(calls)
    for call in calls.values():  # compiled, and its buffers at hand
        call()
    peaks = {name: peak_mib(calls[name], device) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names if turn % 2 else names[::-1]:
            times[name].append(seconds(calls[name], device))
    base = times[names[0]]
    return {
        name: Measured(median(took), median(b / t for b, t in zip(base, took, strict=True)), peaks[name])
        for name, took in times.items()
    }


def seconds(call: Call, device: str = "cpu") -> float:
    """CPU time of this process, or time on the GPU."""
    if device == "cpu":
        started = time.process_time()
        call()
        return time.process_time() - started
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def peak_mib(call: Call, device: str = "cpu") -> float:
    """Of one call, beyond what was held before. On Linux only where `device` is the CPU."""
    if device != "cpu":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Not in a forked child: autograd refuses to run in one whose parent has run a backward pass.
    ctypes.CDLL(None).malloc_trim(0)  # what was freed, but is still the process's, would hide what the call takes
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before_kib = _status_kib("VmRSS")
    call()
    return (_status_kib("VmHWM") - before_kib) / 1024


def _status_kib(field: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))
