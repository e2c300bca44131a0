"""Copies of the trained parameters: the old policy of an off-policy method, and moving averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ParameterCopy:
    """A copy of parameters, by name, that can follow the live values and be swapped in for them."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._live = dict(parameters)
        self._copy = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Update the copy: copy = decay * copy + (1 - decay) * live."""
        torch._foreach_lerp_(list(self._copy.values()), [p.detach() for p in self._live.values()], 1 - decay)

    def is_live(self) -> bool:
        """Return True if the copy equals the live values."""
        return all(torch.equal(self._copy[name], parameter.detach()) for name, parameter in self._live.items())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the copy into the model while open; tensors are exchanged, not copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copy by name."""
        return dict(self._copy)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the copy from `state_dict`."""
        for name, copy in self._copy.items():
            copy.copy_(state[name])

    def _swap(self) -> None:
        for name, parameter in self._live.items():
            parameter.data, self._copy[name] = self._copy[name], parameter.data
