"""Padded batches of token sequences, their masks, and buckets of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_right(texts: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:  # [B, T] int64, [B, T] bool
    """Return token ids padded on the right, and their mask. T is the length of the longest, and at least 1."""
    longest = max((len(text) for text in texts), default=0) or 1
    tokens = torch.full((len(texts), longest), padding, dtype=torch.long)
    mask = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        mask[row, : len(text)] = True
    return tokens, mask


def length_buckets(lengths: Sequence[int], overhead: int = 64) -> list[list[int]]:
    """Return rows in buckets of similar length, so that short sequences are not padded to the longest.

    A bucket costs rows x longest + `overhead` tokens; the partition of the sorted rows with the lowest cost is
    returned.

    >>> length_buckets([1, 9, 1, 9], overhead=4)
    [[0, 2], [1, 3]]
    """
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    ends = [i for i in range(1, len(order) + 1) if i == len(order) or lengths[order[i]] != lengths[order[i - 1]]]
    best: dict[int, tuple[int, int]] = {0: (0, 0)}  # rows so far: cost, where the last bucket began
    for end in ends:
        longest = lengths[order[end - 1]]
        best[end] = min((cost + (end - start) * longest + overhead, start) for start, (cost, _) in best.items())
    buckets, end = [], len(order)
    while end:
        start = best[end][1]
        buckets.append(sorted(order[start:end]))
        end = start
    return buckets[::-1]
