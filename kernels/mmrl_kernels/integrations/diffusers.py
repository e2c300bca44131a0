"""Attention backends of diffusers' models, chosen with a reason and installed by diffusers' own doors.

    choice = use_attention(pipe.transformer, "auto")
    print(choice.name, choice.reason)  # sdpa: xformers: FluxTransformer2DModel is on cpu, ...

Two doors: `set_attention_backend`, which only processors that dispatch follow (SD3's and the UNets' do not), and the
older `enable_xformers_memory_efficient_attention`, which swaps the processors of such models.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import nn

from mmrl_kernels.registry import KernelError

__all__ = ["AttentionChoice", "Requested", "use_attention"]

Name = Literal["sdpa", "flex", "xformers", "flash"]
Requested = Literal["auto", "sdpa", "flex", "xformers", "flash"]

BACKENDS: dict[Name, str] = {"sdpa": "native", "flex": "flex", "xformers": "xformers", "flash": "flash"}
"""Our names -> diffusers' names."""


@dataclass(frozen=True)
class AttentionChoice:
    """The backend of a model's attention, and the reasons against preferred ones."""

    name: Name
    reason: str


@dataclass(frozen=True)
class Facts:
    """The facts about a model and its device that the choice depends on."""

    model: str
    device: str
    half: bool  # float16 or bfloat16
    trains: bool  # some parameter wants a gradient
    installed: frozenset[str]
    dependents: int  # attention modules whose processor follows `set_attention_backend`
    others: tuple[str, ...] = ()  # processors of those that do not
    swappable: bool = False  # whether all of those have an equal that calls xformers

    def unsupported_layers(self) -> str:
        """Describe the attention modules that keep their processor."""
        return ", ".join(f"{count} x {name}" for name, count in Counter(self.others).items())


def use_attention(module: nn.Module, requested: Requested = "auto") -> AttentionChoice:
    """Set the attention backend of a model; `auto` chooses one that supports it.

    `auto` is SDPA on a CPU; on a GPU it is xformers where that is installed and the model is in half precision, else
    SDPA. It never takes flash-attn, which fails at the first attention mask, nor FlexAttention, which diffusers calls
    uncompiled.

    Raises:
        KernelError: the requested backend does not support this model here; the message says what to do.
    """
    if requested not in get_args(Requested):
        raise KernelError(f"attention {requested!r}: expected one of {', '.join(get_args(Requested))}")
    facts = inspect_model(module)
    choice = choose_attention(requested, facts)
    if facts.dependents:
        from diffusers import attention_backend

        # diffusers sets the process's default along with the model's own; the context puts the default back.
        with attention_backend("native"):
            module.set_attention_backend(BACKENDS[choice.name])  # type: ignore[operator]
    elif choice.name == "xformers":
        module.enable_xformers_memory_efficient_attention()  # type: ignore[operator]
    return choice


def choose_attention(requested: Requested, facts: Facts) -> AttentionChoice:
    """The choice for a model of these facts.

    Raises:
        KernelError: as `use_attention`.
    """
    if requested == "auto":
        reason_against = unsupported_reason("xformers", facts)
        if reason_against is None and not facts.half:
            reason_against = f"{facts.model} is not in half precision"
        return AttentionChoice("xformers", "first choice") if reason_against is None else AttentionChoice(
            "sdpa", f"xformers: {reason_against}")  # fmt: skip
    reason_against = unsupported_reason(requested, facts)
    if reason_against is not None:
        raise KernelError(f"attention: {requested}: {reason_against}: change that, or choose auto or sdpa")
    reason = "requested by name"
    if requested != "sdpa" and facts.dependents and facts.others:
        kept = facts.unsupported_layers()
        reason += f"; {facts.dependents} attention modules follow, and these keep their processor: {kept}"
    if requested == "flex":
        reason += "; diffusers calls it uncompiled, which holds all scores in memory: compile the model"
    return AttentionChoice(requested, reason)


def unsupported_reason(name: Name, facts: Facts) -> str | None:
    """None, or why a backend cannot serve this model here."""
    if name == "sdpa":
        return None
    if name == "flex" and facts.device == "cpu" and facts.trains:
        return f"{facts.model} is on cpu and trains, and FlexAttention has no backward pass there"
    if name in ("xformers", "flash") and facts.device != "cuda":
        return f"{facts.model} is on {facts.device}, and {name} has CUDA operators only"
    if name == "xformers" and "xformers" not in facts.installed:
        return "xformers is not installed (pip install xformers)"
    if name == "flash" and "flash_attn" not in facts.installed:
        return "flash-attn is not installed (pip install flash-attn; sdpa runs torch's own flash kernels without it)"
    if name == "flash" and not facts.half:
        return f"{facts.model} is not in half precision, which flash-attn needs"
    if facts.dependents or (name == "xformers" and facts.swappable):
        return None
    if not facts.others:
        return f"{facts.model} has no attention modules that diffusers knows"
    return f"no attention module of {facts.model} follows set_attention_backend ({facts.unsupported_layers()})"


def inspect_model(module: nn.Module) -> Facts:
    """The facts of a model."""
    parameters = list(module.parameters())
    first = next((p for p in parameters if p.is_floating_point()), torch.empty(0))
    attentions = _attentions(module)
    unsupported_layers = [attention for attention in attentions if not _follows(attention)]
    return Facts(
        model=type(module).__name__,
        device=first.device.type,
        half=first.dtype in (torch.float16, torch.bfloat16),
        trains=any(p.requires_grad for p in parameters),
        installed=frozenset(name for name in ("xformers", "flash_attn") if find_spec(name) is not None),
        dependents=len(attentions) - len(unsupported_layers),
        others=tuple(type(attention.processor).__name__ for attention in unsupported_layers),
        swappable=bool(unsupported_layers)
        and all(_has_xformers_processor(attention) for attention in unsupported_layers),
    )


def _attentions(module: nn.Module) -> list[Any]:
    """The modules that `set_attention_backend` visits."""
    if not hasattr(module, "set_attention_backend"):
        return []
    from diffusers.models.attention import AttentionModuleMixin
    from diffusers.models.attention_processor import Attention, MochiAttention

    return [m for m in module.modules() if isinstance(m, Attention | MochiAttention | AttentionModuleMixin)]


def _follows(attention: Any) -> bool:
    """By diffusers' own rule: such a processor hands what is set here to its dispatcher."""
    return hasattr(attention.processor, "_attention_backend")


def _has_xformers_processor(attention: Any) -> bool:
    """Return True if diffusers has an equivalent xformers processor; it would replace others wrongly."""
    name = type(attention.processor).__name__
    if name == "JointAttnProcessor2_0":
        return True
    # The xformers processor for these two skips the norm of queries and keys.
    return name in ("AttnProcessor", "AttnProcessor2_0") and getattr(attention, "norm_q", None) is None
