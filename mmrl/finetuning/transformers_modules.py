"""What of a transformers model is trained: adapters, or parameters themselves. And with it the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import nn
from transformers.utils import logging as transformers_logging

from mmrl.config.policy import LoraConfig
from mmrl.errors import ConfigError
from mmrl.finetuning.reference import FrozenCopy, adapters_off

ADAPTER_FILE = "adapter_model.safetensors"


class Trainable(Protocol):
    """The trained part of a model."""

    def reference(self) -> AbstractContextManager[None]:
        """While open, the model computes with the parameters that training started from."""
        ...

    def save(self, folder: Path) -> None:
        """Write what was trained."""
        ...

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote, into the same parameters."""
        ...


class Adapters:
    """Low-rank adapters on linear layers; the model itself is frozen, and is the reference."""

    def __init__(self, model: nn.Module, config: LoraConfig, layers: Sequence[str]) -> None:
        """`layers` are the full names of the linear layers to adapt."""
        self._peft = get_peft_model(
            model,
            PeftLoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=list(layers)),
            autocast_adapter_dtype=True,
        )
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        self._layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]

    def reference(self) -> AbstractContextManager[None]:
        return adapters_off(self._layers)

    def save(self, folder: Path) -> None:
        """A PEFT folder, as `PeftModel.from_pretrained(model, folder)` takes it."""
        self._peft.save_pretrained(str(folder), safe_serialization=True)

    def load(self, folder: Path) -> None:
        path = folder / ADAPTER_FILE
        state, due = load_file(path), get_peft_model_state_dict(self._peft)
        if odd := sorted(state.keys() ^ due.keys())[:3]:
            raise ConfigError(f"{path} holds another adapter than policy.lora describes; they differ in {odd}")
        if wrong := next((key for key in due if state[key].shape != due[key].shape), None):
            came, wanted = list(state[wrong].shape), list(due[wrong].shape)
            raise ConfigError(f"{path}: {wrong} is {came}, policy.lora makes it {wanted}")
        set_peft_model_state_dict(self._peft, state)


class WholeParameters:
    """Parameters of the model itself; the reference is a frozen copy of them.

    They are float32 whatever the model computes in: an update of 1e-6 is lost in bfloat16.
    """

    def __init__(self, model: Any, trained: Callable[[str], bool]) -> None:
        """`trained` says of a parameter, by its name, whether it learns."""
        self._model = model
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained(name))
        self._copy = FrozenCopy([model], kept=lambda _, parameter: parameter.dtype, only_trained=True)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()

    def reference(self) -> AbstractContextManager[None]:
        return self._copy.in_place()

    def save(self, folder: Path) -> None:
        """A folder that the model's class loads with `from_pretrained`."""
        with _no_progress_bar():
            self._model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        settings = dict(use_safetensors=True, dtype=torch.float32, output_loading_info=True)
        try:
            saved, found = type(self._model).from_pretrained(folder, **settings)
        except RuntimeError as err:  # sizes
            raise ConfigError(f"{folder} holds another model than policy.model names: {err}") from None
        # What is missing would be left at random, with a warning.
        if odd := sorted([*found["missing_keys"], *found["unexpected_keys"]])[:3]:
            raise ConfigError(f"{folder} holds another model than policy.model names; they differ in {odd}")
        values = dict(saved.named_parameters())
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(values[name])


def layers_named(inside: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Of linear layers by their full names, those that end in one of the targets; all of them where there is none.

    Raises:
        ConfigError: a target is the end of none of them.
    """
    if not targets:
        return list(inside)
    chosen = [path for path in inside if any(f".{path}".endswith(f".{target}") for target in targets)]
    missing = [t for t in targets if not any(f".{path}".endswith(f".{t}") for path in chosen)]
    if missing:
        ends = sorted({path.rsplit(".", 1)[-1] for path in inside})
        raise ConfigError(
            f"policy.lora.targets: the trained parts have no linear layer {', '.join(missing)}; "
            f"they have {', '.join(ends)}"
        )
    return chosen


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws one for each checkpoint, across the display of the run."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
