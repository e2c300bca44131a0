"""Interface of everything that can be trained in a model, and the parts that LoRA and full training share.

A `Trainable` marks parameters of a model as trained, gives the model back as it was before training (the reference of
a KL penalty), and reads and writes a checkpoint. Trained parameters are float32 in every case: an update of 1e-6 is
lost in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from mmrl.distributed.layout import DividedTensors, Layout
from mmrl.distributed.tensor_parts import cut, own_part
from mmrl.errors import ConfigError


class Trainable(Protocol):
    """The trained parameters of one or several models."""

    def place(self, layout: Layout) -> None:
        """Let the layout divide the models over the processes, the reference included; before training."""

    def reference(self) -> AbstractContextManager[None]:
        """Return a context in which the models compute with the parameters that training started from."""

    def save(self, folder: Path) -> None:
        """Write the trained parameters into a folder."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, into the same parameters.

        Raises:
            ConfigError: the folder contains parameters of other names or shapes.
        """


class NothingTrained:
    """No trained parameters: the model is frozen, and needs no copy as its reference."""

    def __init__(self, model: nn.Module) -> None:
        """Freeze every parameter of `model`, in place."""
        model.requires_grad_(False)

    def place(self, layout: Layout) -> None:
        """Leave the model whole in every process."""

    def reference(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save(self, folder: Path) -> None:
        raise ConfigError(f"{folder}: nothing of this model is trained, so there is nothing to save")

    def load(self, folder: Path) -> None:
        raise ConfigError(f"{folder}: nothing of this model is trained, so there is nothing to load")


class FrozenCopy:
    """A copy of the parameters of some modules that can temporarily replace the live ones.

    The copy computes exactly what the untrained modules did: make it before training.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        dtype_of: Callable[[nn.Module, nn.Parameter], torch.dtype],
        only_trained: bool = False,
    ) -> None:
        """Copy the parameters of `modules`, submodules included; `only_trained`: those that require a gradient.

        `dtype_of` maps the module that owns a parameter, and the parameter, to the dtype of the copy.
        """
        self._slots: list[tuple[nn.Module, str]] = []
        self._frozen: list[nn.Parameter] = []
        self._divided: DividedTensors | None = None
        self._layout: Layout | None = None
        for module in (each for root in modules for each in root.modules()):
            for name, parameter in module.named_parameters(recurse=False):
                if only_trained and not parameter.requires_grad:
                    continue
                self._slots.append((module, name))
                copy = parameter.detach().to(dtype_of(module, parameter), copy=True)
                self._frozen.append(nn.Parameter(copy, requires_grad=False))

    def place(self, layout: Layout) -> None:
        """Keep only this process's part of the copy, if the layout divides parameters; these are divided already."""
        if layout.gathers_in_calls:
            self._layout, live = layout, self._live()
            self._frozen = [
                nn.Parameter(cut(frozen.detach(), parameter).to(parameter.device, copy=True), requires_grad=False)
                for frozen, parameter in zip(self._frozen, live, strict=True)
            ]
            return
        self._divided = layout.divide(self._frozen)
        if self._divided is not None:
            self._frozen = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While open, the modules compute with the copy.

        Raises:
            RunError: the copy is divided, and not whole now.
        """
        if self._layout is not None:
            with self._exchanged(self._layout):
                yield
            return
        # The parameter objects are exchanged, not their values: a graph that waits for backward keeps its parameters.
        live, frozen = self._live(), self._frozen
        if self._divided is not None:
            frozen = [nn.Parameter(tensor, requires_grad=False) for tensor in self._divided.tensors()]
        self._fill(frozen)
        try:
            yield
        finally:
            self._fill(live)

    @contextmanager
    def _exchanged(self, layout: Layout) -> Iterator[None]:
        """While open, the parts have the values of the copy; a graph that needs the live ones must not wait."""
        parts = [own_part(parameter) for parameter in self._live()]
        values = [part.clone() for part in parts]
        _write(self._frozen, parts)
        layout.parameters_changed()
        try:
            yield
        finally:
            _write(values, parts)
            layout.parameters_changed()

    def _live(self) -> list[nn.Parameter]:
        return [cast(nn.Parameter, module._parameters[name]) for module, name in self._slots]

    def _fill(self, parameters: Sequence[nn.Parameter]) -> None:
        for (module, name), parameter in zip(self._slots, parameters, strict=True):
            module._parameters[name] = parameter


@torch.no_grad()
def _write(values: Sequence[Tensor], places: Sequence[Tensor]) -> None:
    for value, place in zip(values, places, strict=True):
        place.copy_(value)


@contextmanager
def adapters_disabled(layers: Sequence[Any]) -> Iterator[None]:
    """While open, peft's adapter layers compute what the model did without adapters."""
    # Not `enable_adapters(False)`: it clears `requires_grad` of parameters whose graph may be waiting for backward.
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, flag in zip(layers, before, strict=True):
            layer._disable_adapters = flag


def train_in_float32(model: nn.Module) -> None:
    """Convert every parameter of a module that requires a gradient to float32, in place."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def check_adapter_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> None:
    """Check that the tensors of an adapter file have the names and shapes of the model's adapter.

    Raises:
        ConfigError: they differ; the message names the file `path` and up to three tensors.
    """
    if odd := sorted(state.keys() ^ expected.keys())[:3]:
        raise ConfigError(f"{path} holds another adapter than policy.lora describes; they differ in {', '.join(odd)}")
    if wrong := next((key for key in expected if state[key].shape != expected[key].shape), None):
        came, needed = list(state[wrong].shape), list(expected[wrong].shape)
        raise ConfigError(f"{path}: {wrong} is {came}, policy.lora makes it {needed}")
