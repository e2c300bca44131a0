"""How a token policy's language model attends: who computes it, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmrl.config.policy import TokenAttention
from mmrl.errors import ConfigError
from mmrl_kernels.doors.transformers import refusal, use_shared_prompts

_NAMES = {"sdpa": "sdpa", "flex": "flex_attention", "flash": "flash_attention_2"}


@dataclass(frozen=True)
class Attention:
    """What was chosen."""

    name: str  # of `policy.attention`, never auto
    reason: str

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts and their answers may be packed into one row."""
        return self.name == "mmrl"

    def __str__(self) -> str:
        return f"attention: {self.name} ({self.reason})"


def choose_attention(model: Any, wanted: TokenAttention, why_not: str | None = None) -> Attention:
    """Set a transformers model's attention. `why_not` says why its prompts cannot be shared, whatever it is made of.

    Raises:
        ConfigError: what was asked for by name cannot serve this model.
    """
    why_not = why_not or refusal(model.config.get_text_config())
    if wanted in ("auto", "mmrl"):
        if why_not is None:
            use_shared_prompts(model)
            return Attention("mmrl", "a group's answers share its prompt" if wanted == "auto" else "as configured")
        if wanted == "mmrl":
            raise ConfigError(f"policy.attention: mmrl shares prompts, which this model cannot: {why_not}; choose auto")
        return Attention("sdpa", why_not)
    if wanted == "xformers":
        raise ConfigError("policy.attention: transformers has no door for xformers; choose auto, sdpa, flex or flash")
    try:
        model.set_attn_implementation(_NAMES[wanted])
    except (ImportError, ValueError) as err:
        raise ConfigError(f"policy.attention: {wanted} cannot serve {type(model).__name__}: {err}") from err
    return Attention(wanted, "as configured")
