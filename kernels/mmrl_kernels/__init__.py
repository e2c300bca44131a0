"""Fused operations for reinforcement learning on images, video and text, each beside its plain torch reference.

    shared_prompt_attention, SharedPromptLayout   a group's completions share one prompt
    branching_attention, Branches                 the same while they are being written
    linear_logprob, linear_logprob_entropy        log-probabilities of tokens without their logits

`MMRL_KERNELS=reference|triton|auto` chooses who computes them (`mmrl_kernels.registry`). Importing this
package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Branches": "ops.shared_prompt.branches",
    "KernelError": "registry",
    "SharedPromptLayout": "ops.shared_prompt",
    "branching_attention": "ops.shared_prompt.branches",
    "linear_logprob": "ops.linear_logprob",
    "linear_logprob_entropy": "ops.linear_logprob",
    "shared_prompt_attention": "ops.shared_prompt",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmrl_kernels' has no attribute {name!r}")
    return getattr(import_module(f"mmrl_kernels.{_HOMES[name]}"), name)
