"""Tiles of a pack for the kernels, and the keys or queries that each tile visits.

A tile never holds tokens of two groups, nor of a prompt and its completions; it may hold several short completions of
one prompt, and a row then looks at no key before its own completion's start. The tables depend on the layout alone:
they are built once for all layers, and the longest tiles come first, so that short ones fill the end of a launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmrl_kernels.ops.shared_prompt.layout import SharedPromptLayout, Span

MAX_WIDTH = 256
"""The widest head whose tiles fit into the shared memory of a block."""


@dataclass(frozen=True)
class Sizes:
    """The settings of one launch: tokens per tile on either side, and compilation options."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Plan:
    """Sizes of the three kernels. A head's width and the dtype decide them: nothing is tuned at run time."""

    forward: Sizes
    of_query: Sizes
    of_keys: Sizes


@dataclass(frozen=True)
class Tables:
    """The tables that the kernels read, on the tensors' device."""

    starts: Tensor  # [N] int32; where each token's own segment begins
    forward: Tensor  # [tiles, 6] int32, see `query_tiles`
    of_query: Tensor  # [tiles, 6] int32
    of_keys: Tensor  # [tiles, 5] int32, see `key_tiles`


def plan(width: int, itemsize: int) -> Plan:
    """Tile sizes for heads of `width` numbers of `itemsize` bytes."""
    if itemsize > 2:  # float32: products in full precision run on plain registers, and larger tiles spill them
        narrow = Sizes(32, 32 if width <= 64 else 16, 8, 2)
        return Plan(narrow, narrow, Sizes(32, 32, 8, 2 if width <= 128 else 1))
    if width <= 64:
        return Plan(Sizes(128, 64, 4, 3), Sizes(128, 64, 8, 3), Sizes(64, 128, 8, 3))
    if width <= 128:
        return Plan(Sizes(128, 64, 8, 3), Sizes(128, 64, 8, 2), Sizes(32, 128, 8, 2))
    return Plan(Sizes(64, 64, 8, 2), Sizes(64, 32, 8, 2), Sizes(32, 64, 8, 2))


@lru_cache(maxsize=16)  # every layer of a forward and a backward pass asks for the same
def tables(layout: SharedPromptLayout, sizes: Plan, device: torch.device) -> Tables:
    """The tables of a layout."""
    starts = torch.tensor([span.start for span in layout.segments], dtype=torch.int32)
    lengths = torch.tensor([len(span) for span in layout.segments])

    def on_device(rows: list[tuple[int, ...]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=device)

    return Tables(
        starts.repeat_interleave(lengths).to(device),
        on_device(query_tiles(layout, sizes.forward)),
        on_device(query_tiles(layout, sizes.of_query)),
        on_device(key_tiles(layout, sizes.of_keys)),
    )


def query_tiles(layout: SharedPromptLayout, sizes: Sizes) -> list[tuple[int, ...]]:
    """Return per tile of queries: start, end, prompt start, prompt end, first key, first key that not every row sees.

    All rows see the whole prompt (empty for a prompt's own tiles) and the keys between the last two, a multiple of
    `sizes.keys`; from there to the tile's end a row sees keys from its segment's start up to itself.
    """
    segment_of, found = _lookup(layout), []
    for group in layout.groups:
        for span, prompt in ((group.prompt, Span(0, 0)), (group.answers, group.prompt)):
            for start, end in _cut(span, sizes.queries):
                first, last = segment_of(start), segment_of(end - 1)
                seen_by_all = start - first.start if first == last else 0
                edge = first.start + seen_by_all // sizes.keys * sizes.keys
                found.append((start, end, prompt.start, prompt.end, first.start, edge))
    return sorted(found, key=lambda tile: tile[2] - tile[3] + tile[4] - tile[1])


def key_tiles(layout: SharedPromptLayout, sizes: Sizes) -> list[tuple[int, ...]]:
    """Return per tile of keys: start, end, first query that sees all of them, end of queries, and 1 if in a prompt.

    A prompt's keys are seen by its completions too, which follow it: for them, order alone decides what is seen.
    """
    segment_of, found = _lookup(layout), []
    for group in layout.groups:
        found += [(a, b, b, group.answers.end, 1) for a, b in _cut(group.prompt, sizes.keys)]
        for start, end in _cut(group.answers, sizes.keys):
            first, last = segment_of(start), segment_of(end - 1)
            found.append((start, end, end if first == last else last.end, last.end, 0))
    return sorted(found, key=lambda tile: tile[0] - tile[3])


def _cut(span: Span, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, span.end)) for start in range(span.start, span.end, size)]


def _lookup(layout: SharedPromptLayout) -> Callable[[int], Span]:
    """The segment in which a token stands."""
    spans = layout.segments
    starts = [span.start for span in spans]
    return lambda token: spans[bisect_right(starts, token) - 1]
