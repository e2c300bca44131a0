"""Copies of the trained parameters: the old policy of an off-policy method, and moving averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mmrl.distributed import processes
from mmrl.distributed.layout import Layout, Replicas
from mmrl.distributed.tensor_parts import cut, gather_parts, is_divided, joined, on_main_whole, own_part
from mmrl.errors import RunError


class ParameterCopy:
    """A copy of parameters, by name, that can follow the live values and be swapped in for them.

    Of parameters that are divided over processes, the copy has this process's parts.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], layout: Layout | None = None, used_in_batches: bool = False
    ) -> None:
        """Copy `parameters`, which lie as `layout` says; None: in each process.

        `used_in_batches`: the copy is swapped in while the parameters are whole, so it must be whole there too.
        """
        self._live, self._layout = dict(parameters), layout or Replicas()
        self._copy = {name: own_part(parameter).clone() for name, parameter in parameters.items()}
        self._whole: dict[str, Tensor] = {}
        if used_in_batches:
            self._layout.keep_whole(self)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Update the copy: copy = decay * copy + (1 - decay) * live."""
        torch._foreach_lerp_(list(self._copy.values()), [own_part(p) for p in self._live.values()], 1 - decay)

    def is_live(self) -> bool:
        """Return True if the copy equals the live values, in all processes."""
        if self._layout.is_whole:
            now = {name: self._layout.current(parameter) for name, parameter in self._live.items()}
            return all(torch.equal(copy, now[name].detach()) for name, copy in self._present().items())
        equal = all(torch.equal(self._copy[name], own_part(parameter)) for name, parameter in self._live.items())
        return all(processes.gather(equal)) if self._divided else equal

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the copy into the model while open; whole tensors are exchanged, not copied.

        Raises:
            RunError: the parameters are whole, and the copy is not.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copy by name: whole tensors, which only process 0 gets if they are divided."""
        return on_main_whole({name: joined(copy, self._live[name]) for name, copy in self._copy.items()})

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the copy from `state_dict`."""
        for name, copy in self._copy.items():
            copy.copy_(cut(state[name], self._live[name]))

    def gather(self) -> None:
        """Make the copy whole in every process."""
        wholes = gather_parts(list(self._copy.values()), list(self._live.values()))
        self._whole = dict(zip(self._copy, wholes, strict=True))

    def release(self) -> None:
        """Free the whole copy; the parts stay."""
        self._whole = {}

    @property
    def _divided(self) -> bool:
        return any(is_divided(parameter) for parameter in self._live.values())

    def _present(self) -> dict[str, Tensor]:
        """Return the tensors of the copy that correspond to the parameters which the models compute with now."""
        if not self._layout.is_whole:
            return self._copy
        if not self._whole:
            raise RunError("a copy of the parameters is divided here: compute with it where it is whole")
        return self._whole

    @torch.no_grad()
    def _swap(self) -> None:
        copy = self._present()
        for name, parameter in self._live.items():
            now = self._layout.current(parameter)
            if is_divided(now):  # the memory of a part is that which is gathered from, so values are exchanged
                part, values = own_part(now), copy[name]
                copy[name] = part.clone()
                part.copy_(values)
            else:
                now.data, copy[name] = copy[name], now.data
        if not self._layout.is_whole:
            self._layout.parameters_changed()
