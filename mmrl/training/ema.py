"""Copies of the trained parameters: the old policy of an off-policy method, and moving averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ParameterCopy:
    """Values of some parameters, by name, that can follow the live ones and stand in for them."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._live = dict(parameters)
        self._kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """kept = decay * kept + (1 - decay) * live."""
        torch._foreach_lerp_(list(self._kept.values()), [p.detach() for p in self._live.values()], 1 - decay)

    def is_live(self) -> bool:
        """Whether the kept values are the live ones."""
        return all(torch.equal(self._kept[name], parameter.detach()) for name, parameter in self._live.items())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While open, the model computes with the kept values. Values are swapped, not copied, and swapped back."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """The kept values by name."""
        return dict(self._kept)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take kept values from `state_dict`."""
        for name, kept in self._kept.items():
            kept.copy_(state[name])

    def _swap(self) -> None:
        for name, parameter in self._live.items():
            parameter.data, self._kept[name] = self._kept[name], parameter.data
