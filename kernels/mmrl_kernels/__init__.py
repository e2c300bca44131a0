"""Fused operations for reinforcement learning on images, video and text, each beside its plain torch reference.

    shared_prompt_attention, SharedPromptLayout   a group's completions share one prompt
    branching_attention, Branches                 the same while they are being written
    linear_logprob, linear_logprob_entropy        log-probabilities of tokens without their logits
    linear_policy_loss                            policy-gradient and preference losses, gradient in the forward pass
    sde_step_logprob                              a denoising step and its log-probability
    norm_modulate                                 normalisation and modulation of DiT blocks
    varlen_attention                              sequences of different lengths without padding

`MMRL_KERNELS=reference|native|compile|triton|auto` chooses who computes them (`mmrl_kernels.registry`). Importing this
package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "CISPO": "ops.linear_policy_loss",
    "Branches": "ops.shared_prompt.branches",
    "Clip": "ops.linear_policy_loss",
    "DPO": "ops.linear_policy_loss",
    "GSPO": "ops.linear_policy_loss",
    "KernelError": "registry",
    "PolicyLoss": "ops.linear_policy_loss",
    "SharedPromptLayout": "ops.shared_prompt",
    "branching_attention": "ops.shared_prompt.branches",
    "linear_logprob": "ops.linear_logprob",
    "linear_logprob_entropy": "ops.linear_logprob",
    "linear_policy_loss": "ops.linear_policy_loss",
    "norm_modulate": "ops.norm_modulate",
    "sde_step_logprob": "ops.sde_step_logprob",
    "sde_step_sample": "ops.sde_step_logprob",
    "shared_prompt_attention": "ops.shared_prompt",
    "varlen_attention": "ops.varlen",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmrl_kernels' has no attribute {name!r}")
    return getattr(import_module(f"mmrl_kernels.{_HOMES[name]}"), name)
