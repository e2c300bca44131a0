"""Independent random streams from one seed: the noise of a row, the exploration, the window."""

from __future__ import annotations

from hashlib import blake2b

import torch


def stream_seed(seed: int, *stream: int | str) -> int:
    """A seed in [0, 2**63) for one named stream; equal names give equal seeds, on every machine and version."""
    name = "/".join(map(str, (seed, *stream)))
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def row_generators(seed: int, rows: int) -> list[torch.Generator]:
    """One generator a row: what row i starts from depends on (seed, i) alone. On the CPU: equal on every device."""
    return [torch.Generator().manual_seed(stream_seed(seed, "row", row)) for row in range(rows)]
