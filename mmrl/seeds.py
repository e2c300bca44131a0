"""Seeds and generators: independent random streams that all follow from one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def stream_seed(seed: int, *stream: int | str) -> int:
    """Return a seed in [0, 2**63) for a named stream; equal names give equal seeds on every machine and version."""
    name = "/".join(map(str, (seed, *stream)))
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def row_generators(seed: int, rows: Sequence[int], device: torch.device | str = "cpu") -> list[torch.Generator]:
    """Return a generator for each number in `rows`; its state depends on (seed, number) alone.

    Rows with equal numbers get equal noise. Generators on the CPU give the same noise for every device.
    """
    return [torch.Generator(device).manual_seed(stream_seed(seed, "row", row)) for row in rows]


@contextmanager
def global_generators(seed: int, device: torch.device) -> Iterator[list[torch.Generator]]:
    """Seed torch's global generators of the CPU, and of `device` if it is a GPU, while open; restore them after."""
    on_gpu = device.type == "cuda"
    devices = [torch.cuda.current_device() if device.index is None else device.index] if on_gpu else []
    with torch.random.fork_rng(devices):
        generators = [torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)]
        for generator in generators:
            generator.manual_seed(stream_seed(seed, "global"))
        yield generators


def fold_in(seed: int, *numbers: int) -> int:
    """Return a seed in [0, 2**63) that depends on all arguments, such as a run's seed and its iteration.

    Calls with different numbers of arguments may collide.
    """
    return int(np.random.SeedSequence((seed, *numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))
