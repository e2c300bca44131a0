"""Sizes of chunks: enough rows for fast GEMMs, few enough to take little memory."""

from __future__ import annotations

MIB = 2**20

CHUNK_BYTES = {"cpu": 32 * MIB, "cuda": 512 * MIB}
"""Bytes of one chunk's logits. On a CPU 256 rows of 32,000 float32; on a GPU enough tiles for every multiprocessor."""

FEWEST_ROWS = 128
"""The weight's gradient is read and written once a chunk: with fewer rows that is most of the time."""

TILE_BYTES = {"cpu": MIB // 2, "cuda": 128 * MIB}
"""Bytes of the float32 rows that the portable softmax works on at a time: on a CPU they stay in its cache."""


def rows_per_chunk(rows: int, vocabulary: int, itemsize: int, device: str) -> int:
    """Such that a chunk's logits take the device's `CHUNK_BYTES` at most, the rows being spread evenly over chunks.

    >>> rows_per_chunk(2048, 32000, 4, "cpu")
    256
    >>> rows_per_chunk(300, 32000, 4, "cpu")
    150
    """
    budget = CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (vocabulary * itemsize)
    most = max(budget, FEWEST_ROWS)
    chunks = -(-rows // most)
    return max(-(-rows // max(chunks, 1)), 1)


def rows_per_tile(vocabulary: int, itemsize: int, device: str) -> int:
    """At least 1.

    >>> rows_per_tile(32000, 4, "cpu")
    4
    """
    return max(TILE_BYTES.get(device, TILE_BYTES["cuda"]) // (vocabulary * itemsize), 1)


def columns_per_block(vocabulary: int, width: int) -> int:
    """Return the vocabulary columns per block, so that a half-precision part of the weight's gradient stays small."""
    return max(min(vocabulary, 16 * MIB // width), 1)
