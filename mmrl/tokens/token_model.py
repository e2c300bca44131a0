"""`TokenModel`: a transformers model of tokens that is trained, with its attention, precision and parameters."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.config.policy import ImageTokenConfig, TokenAttention, VLMConfig
from mmrl.distributed.layout import Layout, Replicas
from mmrl.errors import ConfigError
from mmrl.finetuning.trainable import Trainable
from mmrl_kernels.integrations.transformers import unsupported_reason as kernel_unsupported_reason
from mmrl_kernels.integrations.transformers import use_shared_prompts

_NAMES = {"sdpa": "sdpa", "flex": "flex_attention", "flash": "flash_attention_2"}


@dataclass(frozen=True)
class Attention:
    """A selected attention implementation."""

    name: str  # a value of `policy.attention`, never `auto`
    reason: str  # the reason for the selection, for the log

    @property
    def shares_prompts(self) -> bool:
        """True if prompts and their answers may be packed into one row."""
        return self.name == "mmrl"

    def __str__(self) -> str:
        return f"attention: {self.name} ({self.reason})"


def choose_attention(model: Any, requested: TokenAttention, unsupported_reason: str | None = None) -> Attention:
    """Set the attention implementation of a transformers model, and return it.

    Args:
        model: the model, which is changed in place.
        requested: the value of `policy.attention`.
        unsupported_reason: why prompts of this model cannot be shared between answers; None: check its layers.

    Raises:
        ConfigError: an implementation that was requested by name does not support this model.
    """
    unsupported_reason = unsupported_reason or kernel_unsupported_reason(model.config.get_text_config())
    if requested in ("auto", "mmrl"):
        if unsupported_reason is None:
            use_shared_prompts(model)
            return Attention("mmrl", "a group's answers share its prompt" if requested == "auto" else "as configured")
        if requested == "mmrl":
            raise ConfigError(
                f"policy.attention: mmrl shares prompts, which this model cannot: {unsupported_reason}; choose auto"
            )
        return Attention("sdpa", unsupported_reason)
    if requested == "xformers":
        raise ConfigError("policy.attention: transformers has no xformers backend; choose auto, sdpa, flex or flash")
    try:
        model.set_attn_implementation(_NAMES[requested])
    except (ImportError, ValueError) as err:
        raise ConfigError(f"policy.attention: {requested} cannot serve {type(model).__name__}: {err}") from err
    return Attention(requested, "as configured")


class TokenModel(ABC):
    """A transformers model that is trained: a policy that writes tokens, or a critic that judges them."""

    config: VLMConfig | ImageTokenConfig
    _trainable: Trainable

    def __init__(self, model: Any, config: VLMConfig | ImageTokenConfig, unsupported_reason: str | None = None) -> None:
        """Choose the attention of `model`; `unsupported_reason` is that of `choose_attention`."""
        self.config, self.version = config, 0
        self.layout: Layout = Replicas()
        self.attention = choose_attention(model, config.attention, unsupported_reason)
        self._model = model

    def place(self, layout: Layout) -> None:
        """Let the layout divide the model over the processes; before an optimizer or a copy is made."""
        self.layout = layout
        self._trainable.place(layout)

    def networks(self) -> list[nn.Module]:
        """Return the networks that the model computes with."""
        return [self._model]

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by their names in the model; they are always float32."""
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    @property
    def trainable(self) -> Trainable:
        """The part that marks parameters as trained, and knows them as they were before."""
        return self._trainable

    def lr_scale(self, name: str) -> float:
        """Return the learning rate of a parameter relative to `optimizer.lr`."""
        return 1.0

    def load(self, folder: Path) -> None:
        """Load what `save` wrote into the same parameters."""
        self._trainable.load(folder)

    def _train(self, trainable: Trainable) -> None:
        """Train these parameters of the model, with gradient checkpointing if it is configured."""
        self._trainable = trainable
        if self.config.gradient_checkpointing:
            model = self._model  # transformers renamed the method on the way from 5.10 to 5.23
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})

    @contextmanager
    def _scoring(self) -> Iterator[bool]:
        """While open, the model has the configured precision; yield whether it recomputes activations."""
        recomputes = self.config.gradient_checkpointing and torch.is_grad_enabled()
        self._model.train(recomputes)  # transformers recomputes in training mode only
        try:
            with self._precision():
                yield recomputes
        finally:
            self._model.eval()

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.dtype == "float32":
            return nullcontext()
        return torch.autocast(self._model.device.type, dtype=getattr(torch, self.config.dtype))
