"""The processes of a run: `torchrun` or `accelerate launch` starts them, and without it there is one.

    with joined(TimeoutsConfig()):
        mine = [number for number in range(calls) if owns(number)]
        results = gather({number: work(number) for number in mine})  # a dictionary of each process, by rank

`gather` and the functions that are made of it, `broadcast`, `sums` and `sum_in_place` are collective: every process
calls them, in the same order. With one process they return their argument. Objects travel as pickles, which only
processes of the same group exchange. A thread beside the main one has another group (`thread_group`), so that neither
waits for the other's calls.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from mmrl.config.training import TimeoutsConfig
from mmrl.distributed.joining import open_store
from mmrl.distributed.messages import gather_objects
from mmrl.distributed.position import position
from mmrl.distributed.watchdog import watching
from mmrl.errors import RunError

T = TypeVar("T")
_sessions = itertools.count()
_threads = threading.local()
_waited = 0.0
_exchanged = 0


@contextmanager
def joined(timeouts: TimeoutsConfig) -> Iterator[None]:
    """Join the group of processes that the environment describes, while open; with one process, do nothing.

    While it is open, a process that ends, freezes or hangs ends all of them: see `mmrl.distributed.watchdog`. A group
    that exists already, such as that of a script which uses accelerate, is used as it is, and without a watchdog.

    Raises:
        RunError: the other processes did not join in time.
        SystemExit: an error was raised here, after another process had written the message about the end of the run.
    """
    if dist.is_initialized() or launched_size() == 1:
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    from torch._C._distributed_c10d import PrefixStore  # absent where torch was built without torch.distributed

    store, own, count = open_store(timeouts.start)
    number = next(_sessions)
    try:
        with watching(store, own, count, timeouts):
            try:
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                    store=PrefixStore(f"mmrl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}", store),
                    rank=own,
                    world_size=count,
                    # The watchdog, which knows who is late, comes before an error in each process that waits.
                    timeout=timedelta(seconds=timeouts.lateness + timeouts.silence),
                )
            except (dist.DistError, RuntimeError, ValueError) as err:
                raise RunError(f"process {own} could not join the others: {err}") from err
            yield
            barrier()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if size() > 1 else 0


def is_main() -> bool:
    """Return True in process 0, which writes files and displays progress."""
    return rank() == 0


def seconds_waited() -> float:
    """Return the seconds that this process has spent in collective functions, those of waiting for others included."""
    return _waited


def bytes_exchanged() -> int:
    """Return the bytes of all tensors that this process has gathered or added up with the others."""
    return _exchanged


@contextmanager
def collective(name: str, tensor_bytes: int = 0) -> Iterator[None]:
    """Let the watchdog know what this process waits in, and count its time and the bytes of whole tensors.

    It is open around every call that waits for other processes.
    """
    global _waited, _exchanged
    if _group() is not None:  # the position is that of the main thread
        try:
            yield
        except RuntimeError as err:
            err._mmrl_collective = name  # type: ignore[attr-defined]
            raise
        return
    _exchanged += tensor_bytes
    started = time.perf_counter()
    try:
        with position.waiting(name):
            yield
    finally:
        _waited += time.perf_counter() - started


def new_group() -> Any:
    """Return a further group of all processes, for `thread_group`; None with one process. It is collective."""
    if size() == 1:
        return None
    with collective("new group"):
        return dist.new_group(backend="gloo")


@contextmanager
def thread_group(group: Any) -> Iterator[None]:
    """Let the collective functions of this thread use this group while open; None: that of the run."""
    before, _threads.group = _group(), group
    try:
        yield
    finally:
        _threads.group = before


def _group() -> Any:
    return getattr(_threads, "group", None)


def launched_size() -> int:
    """Return the number of processes that were started together, also before they join and after they leave."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_as_main() -> bool:
    """Return True in the process that is or will be number 0, also before it joins the others and after it leaves."""
    return launched_size() == 1 or os.environ.get("RANK", "0") == "0"


def owns(number: int) -> bool:
    """Return True if the piece of work with this number is done by this process: pieces are dealt in turn."""
    return number % size() == rank()


def gather(value: T) -> list[T]:
    """Return the values of all processes, by rank."""
    if size() == 1:
        return [value]
    with collective("gather"):
        return cast(list[T], gather_objects(value, _group()))


def broadcast(value: T) -> T:
    """Return the value of process 0."""
    if size() == 1:
        return value
    box: list[Any] = [value if is_main() else None]
    with collective("broadcast"):
        dist.broadcast_object_list(box, src=0, group=_group())
    return cast(T, box[0])


def barrier() -> None:
    """Wait until every process is here."""
    gather(None)


def on_main(work: Callable[[], T]) -> T:
    """Call a function in process 0 alone, and return its result in all of them."""
    return broadcast(work()) if is_main() else broadcast(cast(T, None))


def sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of each tensor over the processes, by one reduction for each device and dtype.

    The sums of one reduction share their memory. With one process, return the tensors themselves.
    """
    if size() == 1:
        return list(tensors)
    found: dict[int, Tensor] = {}
    kinds = dict.fromkeys((tensor.device, tensor.dtype) for tensor in tensors)
    for kind in kinds:
        places = [place for place, tensor in enumerate(tensors) if (tensor.device, tensor.dtype) == kind]
        flat = torch.cat([tensors[place].reshape(-1) for place in places])
        with collective("sum", flat.nbytes):
            dist.all_reduce(flat, group=_group())
            if flat.is_cuda:
                torch.cuda.synchronize(flat.device)  # the call itself does not wait for the others
        parts = flat.split([tensors[place].numel() for place in places])
        found |= {place: part.view_as(tensors[place]) for place, part in zip(places, parts, strict=True)}
    return [found[place] for place in range(len(tensors))]


def sum_in_place(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over the processes; one reduction for each device and dtype."""
    if size() > 1:
        for tensor, found in zip(tensors, sums(tensors), strict=True):
            tensor.copy_(found)


def largest(value: float) -> float:
    """Return the largest value of all processes; NaN if one of them is NaN."""
    values = gather(value)
    return next((each for each in values if math.isnan(each)), max(values))
