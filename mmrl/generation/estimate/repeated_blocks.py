"""Most of a denoiser is one block, many times over: what each adds can be learned from two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from torch import nn

T = TypeVar("T")

SHORT = 2
"""Blocks that stay of each run. The first may differ: nothing before it asks for gradients."""


@dataclass(frozen=True)
class Run:
    """Equal neighbours in a list of blocks."""

    blocks: nn.ModuleList
    names: tuple[str, ...]


def runs_of(module: nn.Module) -> list[Run]:
    """The runs of equal blocks, longer than `SHORT`, among the lists that are the module's own."""
    found = []
    for blocks in module.children():
        if isinstance(blocks, nn.ModuleList):
            for _, run in groupby(blocks.named_children(), key=lambda named: _shape(named[1])):
                names = tuple(name for name, _ in run)
                if len(names) > SHORT:
                    found.append(Run(blocks, names))
    return found


def extrapolate(runs: Sequence[Run], measure: Callable[[], Sequence[int]]) -> list[int]:
    """What `measure` would say of the whole module, if every block of a run adds the same to each figure.

    It is called with all runs short, then once for each run with one block more.
    """
    lengths = [SHORT] * len(runs)
    with _cut(runs, lengths):
        short = measure()
    whole = list(short)
    for number, run in enumerate(runs):
        with _cut(runs, [length + (place == number) for place, length in enumerate(lengths)]):
            longer = measure()
        left_out = len(run.names) - SHORT
        whole = [sum_ + left_out * (more - less) for sum_, more, less in zip(whole, longer, short, strict=True)]
    return whole


@contextmanager
def _cut(runs: Sequence[Run], lengths: Sequence[int]) -> Iterator[None]:
    """While open, each run has only so many blocks."""
    before = [(run.blocks, dict(run.blocks._modules)) for run in runs]
    try:
        for run, length in zip(runs, lengths, strict=True):
            for name in run.names[length:]:
                del run.blocks._modules[name]
        yield
    finally:
        for blocks, modules in before:
            blocks._modules.update(modules)
            for name in modules:
                blocks._modules[name] = blocks._modules.pop(name)  # in their old order


def _shape(block: nn.Module) -> tuple[object, ...]:
    parts = [(name, type(part).__name__) for name, part in block.named_modules()]
    return type(block), tuple(parts), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
