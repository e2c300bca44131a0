"""Independent random streams from one seed: the noise of a row, the exploration, the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def stream_seed(seed: int, *stream: int | str) -> int:
    """A seed in [0, 2**63) for one named stream; equal names give equal seeds, on every machine and version."""
    name = "/".join(map(str, (seed, *stream)))
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def row_generators(seed: int, rows: Sequence[int], device: torch.device | str = "cpu") -> list[torch.Generator]:
    """One generator for each number: what a row starts from depends on (seed, number) alone, and rows of one number
    start alike. On the CPU: equal on every device."""
    return [torch.Generator(device).manual_seed(stream_seed(seed, "row", row)) for row in rows]


@contextmanager
def global_generators(seed: int, device: torch.device) -> Iterator[list[torch.Generator]]:
    """While open, torch's own generators follow from `seed`: of the CPU and of `device`, if a GPU. Then as before."""
    on_gpu = device.type == "cuda"
    devices = [torch.cuda.current_device() if device.index is None else device.index] if on_gpu else []
    with torch.random.fork_rng(devices):
        generators = [torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)]
        for generator in generators:
            generator.manual_seed(stream_seed(seed, "global"))
        yield generators


# Seeds from seeds: all randomness of a run follows from one number and from where the run is.


def fold_in(seed: int, *numbers: int) -> int:
    """A seed in [0, 2**63) that depends on all of its arguments; compare only seeds of equally many."""
    return int(np.random.SeedSequence((seed, *numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))
