"""LoRA and full training of a transformers model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import nn
from transformers.utils import logging as transformers_logging

from mmrl.config.policy import LoraConfig
from mmrl.distributed.layout import Layout
from mmrl.errors import ConfigError
from mmrl.finetuning.lora_precision import compute_in_input_precision
from mmrl.finetuning.trainable import FrozenCopy, adapters_disabled, check_adapter_state, train_in_float32

ADAPTER_FILE = "adapter_model.safetensors"


class TransformersLora:
    """LoRA adapters on linear layers; the model itself is frozen, and is the reference."""

    def __init__(self, model: nn.Module, config: LoraConfig, layers: Sequence[str]) -> None:
        """Adapt `layers`, the full names of linear layers of `model`, in place, with the rank and alpha of `config`.

        Raises:
            ConfigError: peft adapted other layers.
        """
        self._model = model
        settings = PeftLoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=list(layers))
        with names_kept(model):
            self._peft = get_peft_model(model, settings, autocast_adapter_dtype=True)
        adapted = {path for path, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
        if odd := sorted(adapted ^ set(layers))[:3]:
            raise ConfigError(f"policy.lora.targets: peft adapted other layers than those; they differ in {odd}")
        train_in_float32(model)
        compute_in_input_precision(model)
        self._layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]

    def place(self, layout: Layout) -> None:
        layout.place([self._model])

    def reference(self) -> AbstractContextManager[None]:
        return adapters_disabled(self._layers)

    def save(self, folder: Path) -> None:
        """Write a PEFT folder, which `PeftModel.from_pretrained(model, folder)` reads."""
        self._peft.save_pretrained(str(folder), safe_serialization=True)

    def load(self, folder: Path) -> None:
        path = folder / ADAPTER_FILE
        state, own = load_file(path), get_peft_model_state_dict(self._peft)
        check_adapter_state(state, own, path)
        # peft's own loading renames tensors as if they came from an older checkpoint, and drops what it cannot place.
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])


class TransformersFull:
    """The model's own parameters, or some of them; the reference is a frozen copy."""

    def __init__(self, model: Any, is_trained: Callable[[str], bool]) -> None:
        """Change `model` in place; `is_trained` maps the name of a parameter to True if it is trained."""
        self._model = model
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_trained(name))
        self._copy = FrozenCopy([model], dtype_of=lambda _, parameter: parameter.dtype, only_trained=True)
        train_in_float32(model)

    def place(self, layout: Layout) -> None:
        layout.place([self._model])
        self._copy.place(layout)

    def reference(self) -> AbstractContextManager[None]:
        return self._copy.in_place()

    def save(self, folder: Path) -> None:
        """Write a folder that the model's class loads with `from_pretrained`."""
        with _no_progress_bar():
            self._model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        settings = dict(use_safetensors=True, dtype=torch.float32, output_loading_info=True)
        try:
            saved, found = type(self._model).from_pretrained(folder, **settings)
        except RuntimeError as err:  # tensors of other shapes
            raise ConfigError(f"{folder} holds another model than policy.model names: {err}") from None
        # transformers only warns about missing tensors and leaves them random.
        if odd := sorted([*found["missing_keys"], *found["unexpected_keys"]])[:3]:
            raise ConfigError(f"{folder} holds another model than policy.model names; they differ in {odd}")
        values = dict(saved.named_parameters())
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(values[name])


def select_layers(paths: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Return the layer paths that end with one of the targets, or all paths if there are no targets.

    Raises:
        ConfigError: no path ends with one of the targets.
    """
    if not targets:
        return list(paths)
    selected = [path for path in paths if any(f".{path}".endswith(f".{target}") for target in targets)]
    missing = [t for t in targets if not any(f".{path}".endswith(f".{t}") for path in selected)]
    if missing:
        ends = sorted({path.rsplit(".", 1)[-1] for path in paths})
        raise ConfigError(f"policy.lora.targets: the trained parts have no linear layer {', '.join(missing)}; "
                          f"they have {', '.join(ends)}")  # fmt: skip
    return selected


@contextmanager
def names_kept(model: Any) -> Iterator[None]:
    """Hide the type of a model from peft, which moves adapters of some types (GLM-4V MoE) to other layers.

    It does so for adapters that were trained with transformers 4, where each expert was a layer.
    """
    own = vars(model.config)
    had = own.get("model_type")
    own["model_type"] = ""
    try:
        yield
    finally:
        if had is None:
            del own["model_type"]
        else:
            own["model_type"] = had


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Hide the progress bar that transformers draws for each checkpoint, across the display of the run."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()
