"""LoRA and full training of the denoisers of a diffusers pipeline.

Trained parameters are float32 for every computation dtype. LoRA adapters round their weights to the precision of their
input; a fully trained denoiser keeps float32 weights and computes under autocast.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from diffusers import DiffusionPipeline, ModelMixin
from diffusers.loaders.lora_base import LORA_WEIGHT_NAME_SAFE
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.config.policy import LoraConfig
from mmrl.distributed.layout import Layout
from mmrl.errors import ConfigError
from mmrl.finetuning.lora_precision import compute_in_input_precision
from mmrl.finetuning.trainable import FrozenCopy, Trainable, adapters_disabled, check_adapter_state, train_in_float32

ATTENTION = (
    *("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("to_query", "to_key", "to_value"),  # Kandinsky 5
    *("img_attn_qkv", "img_attn_proj", "txt_attn_qkv", "txt_attn_proj"),  # JoyImage
)
"""Names of attention projections in diffusers, including those of a joint text and image stream."""

ADAPTER = "default"

_ROUNDED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights autocast rounds to its computation dtype."""


class DenoiserTrainable(Trainable, Protocol):
    """The trained parameters of the denoisers of a pipeline."""

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name; names and order are stable."""

    def precision(self) -> AbstractContextManager[Any]:
        """Return the autocast context for calls of the denoisers."""


class DiffusersLora:
    """LoRA adapters on linear layers; the denoisers themselves are frozen, and are the reference."""

    def __init__(self, denoisers: Mapping[str, ModelMixin], config: LoraConfig, pipeline: DiffusionPipeline) -> None:
        """Adapt `denoisers`, by component name, in place; `pipeline` is theirs, whose own format `save` writes."""
        self._denoisers, self._pipeline = dict(denoisers), pipeline
        for name, denoiser in self._denoisers.items():
            denoiser.requires_grad_(False)
            targets = _lora_targets(name, denoiser, config.targets)
            _add_adapter(denoiser, PeftLoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets))
            train_in_float32(denoiser)
            compute_in_input_precision(denoiser)
        self._layers = [m for d in self._denoisers.values() for m in d.modules() if isinstance(m, BaseTunerLayer)]

    def place(self, layout: Layout) -> None:
        layout.place(list(self._denoisers.values()))

    def parameters(self) -> dict[str, nn.Parameter]:
        return _trained(self._denoisers)

    def reference(self) -> AbstractContextManager[None]:
        return adapters_disabled(self._layers)

    def precision(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def save(self, folder: Path) -> None:
        """Write a folder that `pipeline.load_lora_weights(folder)` reads.

        A second denoiser, for which the format of diffusers has no key (Wan 2.2), goes to a subfolder of its name.
        """
        save = getattr(self._pipeline, "save_lora_weights", None)
        known = inspect.signature(save).parameters if save else {}
        places = [name for name in ("transformer", "unet") if f"{name}_lora_layers" in known]
        for name, denoiser in self._denoisers.items():
            if save is None or not places:
                _save_alone(denoiser, folder / name)
                continue
            place = name if name in places else places[0]
            layers = get_peft_model_state_dict(denoiser, adapter_name=ADAPTER)
            metadata = denoiser.peft_config[ADAPTER].to_dict()  # without it, alpha = rank is assumed on loading
            arguments = {f"{place}_lora_layers": layers, f"{place}_lora_adapter_metadata": metadata}
            save(folder if name == place else folder / name, **arguments)

    def load(self, folder: Path) -> None:
        for name, denoiser in self._denoisers.items():
            own = folder / name / LORA_WEIGHT_NAME_SAFE
            path = own if own.is_file() else folder / LORA_WEIGHT_NAME_SAFE
            # pipelines save `transformer.blocks...`, denoisers `blocks...`
            state = {key.removeprefix("transformer.").removeprefix("unet."): v for key, v in load_file(path).items()}
            check_adapter_state(state, get_peft_model_state_dict(denoiser, adapter_name=ADAPTER), path)
            set_peft_model_state_dict(denoiser, state, adapter_name=ADAPTER)


class DiffusersFull:
    """All parameters of the denoisers; the reference is a frozen copy.

    The copy keeps the weights of linear and convolutional layers, which autocast rounds anyway, in their original
    dtype: it is as small as the model was, and computes exactly what the untrained policy does.
    """

    def __init__(self, denoisers: Mapping[str, ModelMixin]) -> None:
        self._denoisers = dict(denoisers)
        largest = max((p for d in self._denoisers.values() for p in d.parameters()), key=Tensor.numel)
        self._device, self._dtype = largest.device.type, largest.dtype
        self._copy = FrozenCopy(
            self._denoisers.values(),
            dtype_of=lambda module, parameter: parameter.dtype if isinstance(module, _ROUNDED) else torch.float32,
        )
        for denoiser in self._denoisers.values():
            denoiser.requires_grad_(True)
            train_in_float32(denoiser)

    def place(self, layout: Layout) -> None:
        layout.place(list(self._denoisers.values()))
        self._copy.place(layout)

    def parameters(self) -> dict[str, nn.Parameter]:
        return _trained(self._denoisers)

    def reference(self) -> AbstractContextManager[None]:
        return self._copy.in_place()

    def precision(self) -> AbstractContextManager[Any]:
        if self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._dtype)

    def save(self, folder: Path) -> None:
        """Write each denoiser to a subfolder of its component name, which `from_pretrained` reads."""
        for name, denoiser in self._denoisers.items():
            denoiser.save_pretrained(folder / name)

    def load(self, folder: Path) -> None:
        for name, denoiser in self._denoisers.items():
            saved = type(denoiser).from_pretrained(folder / name, use_safetensors=True)
            denoiser.load_state_dict(saved.state_dict())


def check_without_lora(denoisers: Mapping[str, nn.Module]) -> None:
    """Raise ConfigError if a denoiser has adapters: new ones would switch them off, also in the reference."""
    for name, denoiser in denoisers.items():
        if any(isinstance(module, BaseTunerLayer) for module in denoiser.modules()):
            raise ConfigError(f"the pipeline's {name} has a LoRA, which the one that is trained would switch off: put "
                              "it into the weights first, by pipeline.fuse_lora() and then "
                              "pipeline.unload_lora_weights()")  # fmt: skip


def _add_adapter(denoiser: ModelMixin, adapter: PeftLoraConfig) -> None:
    """Add an adapter, also to models without `add_adapter` (PixArt, Hunyuan-DiT, Stable Video Diffusion)."""
    if hasattr(denoiser, "add_adapter"):
        denoiser.add_adapter(adapter, ADAPTER)
    else:
        inject_adapter_in_model(adapter, denoiser, ADAPTER)
        denoiser.peft_config = {ADAPTER: adapter}  # where peft looks when it reads the state


def _save_alone(denoiser: ModelMixin, folder: Path) -> None:
    """Save an adapter without a pipeline; `load_lora_adapter(folder, prefix=None)` of the model reads it."""
    if hasattr(denoiser, "save_lora_adapter"):
        denoiser.save_lora_adapter(folder, adapter_name=ADAPTER)
        return
    folder.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(denoiser, adapter_name=ADAPTER)
    save_file({key: value.contiguous() for key, value in state.items()}, folder / LORA_WEIGHT_NAME_SAFE)


def _trained(denoisers: Mapping[str, ModelMixin]) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{path}": parameter
        for name, denoiser in denoisers.items()
        for path, parameter in denoiser.named_parameters()
        if parameter.requires_grad
    }


def _lora_targets(name: str, denoiser: ModelMixin, targets: tuple[str, ...]) -> list[str]:
    linear = [path for path, module in denoiser.named_modules() if isinstance(module, nn.Linear)]
    found = [target for target in targets or ATTENTION if any(f".{path}".endswith(f".{target}") for path in linear)]
    missing = [target for target in targets if target not in found]
    if missing or not found:
        ends = sorted({path.rsplit(".", 1)[-1] for path in linear})
        raise ConfigError(f"policy.lora.targets: {name} has no linear layer {', '.join(missing) or 'of attention'}; "
                          f"it has {', '.join(ends)}")  # fmt: skip
    return found
