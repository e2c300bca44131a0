"""Layouts of the trained parameters over the processes of a run: whole in each of them, or divided.

    layout = choose_layout(config.run.place)  # `mmrl.distributed.choose_layout`, before the models
    policy.place(layout)  # before an optimizer or a copy of the parameters is made
    with layout.whole():
        ...  # sample, replay, evaluate: the models are whole, and no process waits for another
    layout.sum_gradients(parameters)
    norm = layout.clip_gradients(parameters, 1.0)
    optimizer.step()
    layout.parameters_changed()

A layout that divides parameters keeps a part of each in every process. `parameters_to_train()` must be called outside
`whole`: it returns the parts, which the optimizer updates. Every process opens `whole` equally often, and makes all
other calls in the same order. Under `strict`, parameters are never whole: see `mmrl.distributed.strict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmrl.distributed.gradients import sum_gradients


class WholeCopy(Protocol):
    """A copy of parameters that lies divided over the processes, and is whole while the parameters are."""

    def gather(self) -> None:
        """Make the copy whole in every process."""

    def release(self) -> None:
        """Free the whole copy; the parts stay."""


class DividedTensors(WholeCopy, Protocol):
    """Tensors that never change, divided over the processes."""

    def tensors(self) -> list[Tensor]:
        """Return the whole tensors.

        Raises:
            RunError: `Layout.whole` is not open, or is open without copies.
        """


class Layout(Protocol):
    """A distribution of parameters over processes."""

    is_whole: bool
    """True while divided parameters are whole because `whole` is open; always False where nothing is divided."""
    gathers_in_calls: bool
    """True if a placed module gathers its parameters in each call: all processes make equally many calls of it."""

    def place(self, modules: Sequence[nn.Module]) -> None:
        """Divide the parameters of these modules, in place.

        Raises:
            ConfigError: a model cannot be divided.
        """

    def whole(self, copies: bool = True) -> AbstractContextManager[None]:
        """Return a context in which the placed modules are whole and compute without waiting for other processes.

        Without `copies`, the copies of `keep_whole` and `divide` stay divided, which saves their memory: the context is
        then for work that enters neither the reference nor an old policy. Where `gathers_in_calls`, it does nothing.
        """

    def saving(self) -> AbstractContextManager[None]:
        """Return a context in which process 0 can save the placed modules in the formats of their libraries."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes; a parameter that none has a gradient of keeps none."""

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Scale all gradients down to a norm of `max_norm`, if theirs is larger; return the norm before that."""

    def parameters_changed(self) -> None:
        """Note that parameters were changed: in `whole` by loading files, outside of it by the optimizer."""

    def current(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter that the models compute with now in the place of this one."""

    def keep_whole(self, copy: WholeCopy) -> None:
        """Gather the copy whenever the parameters become whole, and release it afterwards."""

    def divide(self, tensors: Sequence[Tensor]) -> DividedTensors | None:
        """Return the tensors divided over the processes, to be gathered by `whole`; None where it gathers nothing."""


class Replicas:
    """Each process has all parameters; gradients are summed once an update."""

    is_whole = False
    gathers_in_calls = False

    def place(self, modules: Sequence[nn.Module]) -> None: ...

    def whole(self, copies: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def saving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        sum_gradients(parameters)

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def parameters_changed(self) -> None: ...

    def current(self, parameter: nn.Parameter) -> nn.Parameter:
        return parameter

    def keep_whole(self, copy: WholeCopy) -> None: ...

    def divide(self, tensors: Sequence[Tensor]) -> DividedTensors | None:
        return None


def layout_of(policy: Any) -> Layout:
    """Return the layout of a policy's parameters; a policy without the attribute `layout` has them whole."""
    layout: Layout = getattr(policy, "layout", None) or Replicas()
    return layout
