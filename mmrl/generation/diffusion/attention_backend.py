"""Who computes the attention of a pipeline's denoisers, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmrl.config.policy import PipelineAttention
from mmrl.errors import ConfigError
from mmrl_kernels.doors.diffusers import use_attention
from mmrl_kernels.registry import KernelError


def set_attention(denoisers: Mapping[str, Any], wanted: PipelineAttention) -> str:
    """Install what a configuration names, and tell what was chosen.

    Raises:
        ConfigError: what was asked for by name cannot serve a denoiser.
    """
    try:
        chosen = {name: use_attention(denoiser, wanted) for name, denoiser in denoisers.items()}
    except KernelError as err:
        raise ConfigError(f"policy.attention: {err}") from err
    return "; ".join(f"attention of {name}: {choice.name} ({choice.reason})" for name, choice in chosen.items())
