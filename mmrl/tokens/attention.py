"""Choice of the attention implementation of a token policy's language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmrl.config.policy import TokenAttention
from mmrl.errors import ConfigError
from mmrl_kernels.integrations.transformers import unsupported_reason as kernel_unsupported_reason
from mmrl_kernels.integrations.transformers import use_shared_prompts

_NAMES = {"sdpa": "sdpa", "flex": "flex_attention", "flash": "flash_attention_2"}


@dataclass(frozen=True)
class Attention:
    """A selected attention implementation."""

    name: str
    """A value of `policy.attention`, never `auto`."""
    reason: str
    """The reason for the selection, for the log."""

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
