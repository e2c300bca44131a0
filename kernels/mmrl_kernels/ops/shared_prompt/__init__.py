"""Attention over a pack in which the completions of a group share one prompt."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmrl_kernels.ops.shared_prompt.layout import Group, SharedPromptLayout, Span
from mmrl_kernels.ops.shared_prompt.tiles import MAX_WIDTH
from mmrl_kernels.registry import Backend, KernelError, Op, implementation, needs_triton

__all__ = ["OP", "Group", "SharedPromptLayout", "Span", "shared_prompt_attention"]


def _unsupported_by_triton(query: Tensor) -> str | None:
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"x is {query.dtype}, and the kernels take float32, bfloat16 and float16"
    if query.shape[-1] > MAX_WIDTH:
        return f"heads of {query.shape[-1]} numbers, and the kernels' tiles hold {MAX_WIDTH}"
    return needs_triton(query)


OP = Op(
    "shared_prompt",
    (
        Backend("triton", f"{__name__}.triton:shared_prompt_attention", _unsupported_by_triton),
        Backend("reference", f"{__name__}.reference:shared_prompt_attention"),
    ),
)


def shared_prompt_attention(
    query: Tensor,  # [N, H, D]
    key: Tensor,  # [N, K, D]; K divides H
    value: Tensor,  # [N, K, D]
    layout: SharedPromptLayout,
    scale: float | None = None,  # of the scores; None: 1 / sqrt(D)
) -> Tensor:  # [N, H, D]
    """Causal attention of each prompt to itself, and of each completion to its own prompt and to itself.

    What every completion sees is what it would see behind a copy of its prompt: outputs and gradients are the same as
    of G separate texts, at P + G R tokens instead of G (P + R). Positions are the caller's (`layout.positions`).

    Raises:
        KernelError: the shapes do not fit together or to the layout, or dtypes or devices differ.

    >>> import torch
    >>> layout = SharedPromptLayout(prompts=(2,), completions=((1, 1),))
    >>> x = torch.ones(4, 1, 8)
    >>> shared_prompt_attention(x, x, x, layout).shape
    torch.Size([4, 1, 8])
    """
    _check(query, key, value, layout)
    run = implementation(OP, query)
    return run(query, key, value, layout, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)  # type: ignore[no-any-return]


def _check(query: Tensor, key: Tensor, value: Tensor, layout: SharedPromptLayout) -> None:
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if query.ndim != 3 or key.shape != value.shape or key.ndim != 3 or query.shape[::2] != key.shape[::2]:
        raise KernelError(f"shared_prompt_attention: expected [N, H, D], [N, K, D] and [N, K, D]; got {shapes}")
    if not query.dtype == key.dtype == value.dtype or not query.device == key.device == value.device:
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in (query, key, value))
        raise KernelError(f"shared_prompt_attention: query, key and value must be of one dtype and device; got {kinds}")
    if query.shape[1] % key.shape[1]:
        raise KernelError(f"shared_prompt_attention: the number of key heads must divide that of query heads; {shapes}")
    if query.shape[0] != layout.tokens:
        raise KernelError(f"shared_prompt_attention: {query.shape[0]} tokens came, the layout has {layout.tokens}")
