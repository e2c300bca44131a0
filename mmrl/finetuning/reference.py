"""The parameters that training started from: two ways to compute with them while others are being trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class FrozenCopy:
    """A copy of all parameters of some modules, which can stand in for the live ones for a while.

    The copy computes exactly what the untrained modules did: it is made before training, in the dtype that `kept`
    names for each parameter.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        kept: Callable[[nn.Module, nn.Parameter], torch.dtype],
        only_trained: bool = False,
    ) -> None:
        """`kept(owner, parameter)` is the dtype that the copy of a parameter has. With `only_trained`, parameters that
        need no gradient are not copied: they stay what they are."""
        self._slots: list[tuple[nn.Module, str]] = []
        self._frozen: list[nn.Parameter] = []
        for module in (each for root in modules for each in root.modules()):
            for name, parameter in module.named_parameters(recurse=False):
                if only_trained and not parameter.requires_grad:
                    continue
                self._slots.append((module, name))
                copy = parameter.detach().to(kept(module, parameter), copy=True)
                self._frozen.append(nn.Parameter(copy, requires_grad=False))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While open, the modules compute with the copy."""
        # Slots are exchanged rather than values: graphs that wait for backward keep their parameters.
        live = [module._parameters[name] for module, name in self._slots]
        self._fill(self._frozen)
        try:
            yield
        finally:
            self._fill(live)

    def _fill(self, parameters: Sequence[nn.Parameter | None]) -> None:
        for (module, name), parameter in zip(self._slots, parameters, strict=True):
            module._parameters[name] = parameter


@contextmanager
def adapters_off(layers: Sequence[Any]) -> Iterator[None]:
    """While open, peft's adapter layers compute what the model did without them."""
    # Not `enable_adapters(False)`: it clears `requires_grad` of parameters whose graph may be waiting for backward.
    before = [layer._disable_adapters for layer in layers]
    _disable(layers, [True] * len(before))
    try:
        yield
    finally:
        _disable(layers, before)


def _disable(layers: Sequence[Any], flags: Sequence[bool]) -> None:
    for layer, flag in zip(layers, flags, strict=True):
        layer._disable_adapters = flag
