"""How much memory operations need: the bytes that live, and the most that lived at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from mmrl.generation.errors import UnsupportedError
from mmrl.generation.tape import replaced_attributes


class LiveBytes(TorchDispatchMode):
    """Counts what is allocated while it is open, until it is freed, be that after it was closed.

    Sees what an allocator would: storages, not tensors, so that views are free and what autograd keeps is counted.
    What was there before is not. It may be opened again and again.

    >>> with LiveBytes() as bytes_:
    ...     _ = torch.zeros(256) + torch.zeros(256)
    >>> bytes_.peak
    3072
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}  # by address of a storage's handle

    def restart(self) -> None:
        """Forget the peak; what lives stays counted."""
        self.peak = self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outcome = func(*args, **kwargs)
        before = {_handle(each) for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_iter(outcome):
            if isinstance(each, Tensor) and _handle(each) not in before:
                self._count(each)
        return outcome

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, handle: int) -> None:
        self.now -= self._sizes.pop(handle)


class FullMasks(TorchDispatchMode):
    """Answers what the meta device cannot: masks select everything and their complements nothing; no mask is skipped.

    Text encoders ask whether any token is padding, to do without a mask; joint attention gathers the tokens that are
    none.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype == torch.bool:
            return False
        if func is torch.ops.aten.index.Tensor and args[0].is_meta:
            args = (args[0], [_selected(each) for each in args[1]])
        outcome = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bitwise_not.default and args[0].is_meta:
            outcome._mmrl_complement = not getattr(args[0], "_mmrl_complement", False)
        return outcome


@contextmanager
def fused_attention() -> Iterator[None]:
    """While open, attention on the meta device is what a GPU computes: without the matrix of all scores.

    Left to itself, torch takes the plain formula there, which holds [B, heads, N, N].
    """
    plain = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return (_fused if query.is_meta else plain)(query, *args, **kwargs)

    # The function itself, for a mode is not active while autograd recomputes activations.
    with replaced_attributes([(torch.nn.functional, "scaled_dot_product_attention", attend)]):
        yield


def _selected(index: Tensor | None) -> Tensor | None:
    if index is None or index.dtype != torch.bool:
        return index
    if index.ndim != 1:
        raise UnsupportedError("a mask of several dimensions selects an unknown number of elements")
    rows = 0 if getattr(index, "_mmrl_complement", False) else len(index)
    return torch.empty(rows, dtype=torch.long, device="meta")


def _fused(
    query: Tensor,  # [..., heads, N, width]
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    if attn_mask is None:
        attend = torch.ops.aten._scaled_dot_product_flash_attention
        return attend(query, key, value, dropout_p, is_causal, scale=scale)[0]
    bias = attn_mask
    if bias.dtype == torch.bool:
        bias = torch.zeros(bias.shape, dtype=query.dtype, device="meta")
    bias = bias.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    return attend(query, key, value, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]


def _handle(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
