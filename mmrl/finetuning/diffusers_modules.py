"""What of a denoiser is trained: adapters, or all of it. And with it the reference, and what a checkpoint holds.

Trained parameters are float32 whatever the model computes in: an update of 1e-5 is lost in bfloat16. Adapters cast
their input; a fully trained denoiser keeps float32 weights and computes under autocast.
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
from mmrl.errors import ConfigError
from mmrl.finetuning.reference import FrozenCopy, adapters_off

ATTENTION = (
    *("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("to_query", "to_key", "to_value"),  # Kandinsky 5
    *("img_attn_qkv", "img_attn_proj", "txt_attn_qkv", "txt_attn_proj"),  # JoyImage
)
"""What diffusers calls the projections of attention, those of a joint stream included."""

ADAPTER = "default"

_ROUNDED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights autocast rounds to the dtype that it computes in."""


class Trainable(Protocol):
    """The trained part of some denoisers."""

    def parameters(self) -> dict[str, nn.Parameter]:
        """By stable name, in stable order."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """While open, the denoisers compute with the parameters that training started from."""
        ...

    def precision(self) -> AbstractContextManager[Any]:
        """What denoiser calls run under."""
        ...

    def save(self, pipeline: DiffusionPipeline, folder: Path) -> None:
        """Write what was trained."""
        ...

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote, into the same parameters."""
        ...


class LoraTrainable:
    """Low-rank adapters on linear layers; the model itself is frozen, and is the reference."""

    def __init__(self, denoisers: Mapping[str, ModelMixin], config: LoraConfig) -> None:
        self._denoisers = dict(denoisers)
        for name, denoiser in self._denoisers.items():
            denoiser.requires_grad_(False)
            targets = _lora_targets(name, denoiser, config.targets)
            _add_adapter(denoiser, PeftLoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets))
            for parameter in denoiser.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self._layers = [m for d in self._denoisers.values() for m in d.modules() if isinstance(m, BaseTunerLayer)]

    def parameters(self) -> dict[str, nn.Parameter]:
        return _trained(self._denoisers)

    def reference(self) -> AbstractContextManager[None]:
        return adapters_off(self._layers)

    def precision(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def save(self, pipeline: DiffusionPipeline, folder: Path) -> None:
        """What `pipeline.load_lora_weights(folder)` takes.

        A second denoiser that diffusers' own format has no place for (Wan 2.2) goes to a folder of its name.
        """
        save = getattr(pipeline, "save_lora_weights", None)
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
            _load_adapter(denoiser, _without_prefix(load_file(path)), path)


class FullTrainable:
    """All parameters of the denoisers; the reference is a frozen copy.

    The weights of linear and convolutional layers, which autocast rounds anyway, are kept in the dtype that they came
    in; so the copy is as small as the model was, and computes exactly what an untrained policy does.
    """

    def __init__(self, denoisers: Mapping[str, ModelMixin]) -> None:
        self._denoisers = dict(denoisers)
        largest = max((p for d in self._denoisers.values() for p in d.parameters()), key=Tensor.numel)
        self._device, self._dtype = largest.device.type, largest.dtype
        self._copy = FrozenCopy(
            self._denoisers.values(),
            kept=lambda module, parameter: parameter.dtype if isinstance(module, _ROUNDED) else torch.float32,
        )
        for denoiser in self._denoisers.values():
            denoiser.requires_grad_(True)
            for parameter in denoiser.parameters():
                parameter.data = parameter.data.float()

    def parameters(self) -> dict[str, nn.Parameter]:
        return _trained(self._denoisers)

    def reference(self) -> AbstractContextManager[None]:
        return self._copy.in_place()

    def precision(self) -> AbstractContextManager[Any]:
        if self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._dtype)

    def save(self, pipeline: DiffusionPipeline, folder: Path) -> None:
        """Each denoiser under its component name, as `from_pretrained` reads it."""
        for name, denoiser in self._denoisers.items():
            denoiser.save_pretrained(folder / name)

    def load(self, folder: Path) -> None:
        for name, denoiser in self._denoisers.items():
            saved = type(denoiser).from_pretrained(folder / name, use_safetensors=True)
            denoiser.load_state_dict(saved.state_dict())


def _add_adapter(denoiser: ModelMixin, adapter: PeftLoraConfig) -> None:
    """Also to models whose class in diffusers has no method for it (PixArt, Hunyuan-DiT, Stable Video Diffusion)."""
    if hasattr(denoiser, "add_adapter"):
        denoiser.add_adapter(adapter, ADAPTER)
    else:
        inject_adapter_in_model(adapter, denoiser, ADAPTER)
        denoiser.peft_config = {ADAPTER: adapter}  # where peft looks when it reads the state


def _save_alone(denoiser: ModelMixin, folder: Path) -> None:
    """The adapter without a pipeline: models that can take it back with `load_lora_adapter(folder, prefix=None)`."""
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


def _lora_targets(name: str, denoiser: ModelMixin, wanted: tuple[str, ...]) -> list[str]:
    linear = [path for path, module in denoiser.named_modules() if isinstance(module, nn.Linear)]
    found = [target for target in wanted or ATTENTION if any(f".{path}".endswith(f".{target}") for path in linear)]
    missing = [target for target in wanted if target not in found]
    if missing or not found:
        ends = sorted({path.rsplit(".", 1)[-1] for path in linear})
        raise ConfigError(f"policy.lora.targets: {name} has no linear layer {', '.join(missing) or 'of attention'}; "
                          f"it has {', '.join(ends)}")  # fmt: skip
    return found


def _without_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pipelines save `transformer.blocks...`, denoisers alone `blocks...`."""
    return {key.removeprefix("transformer.").removeprefix("unet."): value for key, value in state.items()}


def _load_adapter(denoiser: ModelMixin, state: dict[str, Tensor], path: Path) -> None:
    due = get_peft_model_state_dict(denoiser, adapter_name=ADAPTER)
    if state.keys() != due.keys():
        odd = sorted(state.keys() ^ due.keys())[:3]
        raise ConfigError(f"{path} holds another adapter than policy.lora describes; they differ in {', '.join(odd)}")
    if wrong := next((key for key in due if state[key].shape != due[key].shape), None):
        came, wanted = list(state[wrong].shape), list(due[wrong].shape)
        raise ConfigError(f"{path}: {wrong} is {came}, policy.lora makes it {wanted}")
    set_peft_model_state_dict(denoiser, state, adapter_name=ADAPTER)
