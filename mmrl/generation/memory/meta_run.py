"""A pipeline on paper: it runs as it always does, but its networks compute shapes only.

The pipeline's own code and its scheduler compute on the CPU, with zeros for what networks return. The networks are on
the meta device: a call goes there and back, and what it would have allocated is counted. So a policy can be rolled
out and replayed without weights, at any size, and no formula has to be kept for each model.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import PreTrainedTokenizerFast

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.pytree import map_leaves, tree_spec, zeros
from mmrl.generation.diffusion.replay_cache import replaced_attributes
from mmrl.generation.memory.architecture import Architecture, build_component

_METHODS = ("forward", "encode", "decode")
"""What pipelines call on a network."""

_LEFT_OUT = ("safety_checker", "feature_extractor", "image_encoder")
"""Components that look at pixels, of which there are none; pipelines work without."""


class MetaRecorder:
    """What the networks of one pipeline have allocated, by network."""

    def __init__(self) -> None:
        self.bytes = AllocationTracker()
        self.peaks: dict[str, int] = {}
        """By `component.method`, the most that lived at once in one call without gradients."""
        self.graphs: list[Tensor] = []
        """Answers that wait for their backward pass."""
        self._known: dict[tuple[str, str] | None, Any] = {}  # without gradients, equal shapes get equal answers
        self._inside = False

    def compute(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `method` on the meta device; zeros of its answer's shape on the CPU."""
        if self._inside:
            return method(*args, **kwargs)
        asked = None if torch.is_grad_enabled() else (name, repr(tree_spec((args, kwargs))))
        if asked in self._known:
            return zeros(self._known[asked])
        self._inside = True
        if asked:
            self.bytes.restart()
        start = self.bytes.now
        try:
            with fused_attention(), self.bytes, FullMaskMode():
                answer = method(*_moved(args, "meta"), **_moved(kwargs, "meta"))
        finally:
            self._inside = False
        shown = _moved(answer, "cpu")
        if asked is None:
            map_leaves(Tensor, self._keep, answer)
        else:
            self.peaks[name] = max(self.peaks.get(name, 0), self.bytes.peak - start)
            self._known[asked] = tree_spec(shown)
        return shown

    def backward(self) -> None:
        """Of all answers that wait."""
        with fused_attention(), self.bytes, FullMaskMode():  # recomputed activations attend too
            torch.autograd.backward(self.graphs, [torch.empty_like(each) for each in self.graphs])
        self.graphs.clear()

    def _keep(self, answer: Tensor) -> None:
        if answer.requires_grad:
            self.graphs.append(answer)


def meta_pipeline(architecture: Architecture, dtype: torch.dtype) -> tuple[DiffusionPipeline, MetaRecorder]:
    """The pipeline, ready to be called, and the record of what its networks do."""
    paper = MetaRecorder()
    components: dict[str, Any] = {}
    for name, kind in architecture.classes():
        if kind is None or name in _LEFT_OUT:
            components[name] = None
        elif issubclass(kind, nn.Module):
            module = build_component(architecture, name, kind, dtype)
            if "vae" in name:  # pipelines themselves compute with its latents' mean and spread
                _bring_buffers(module)
            original: Any = kind
            module.__class__ = _shapes_only(original)
            vars(module)["_mmrl_paper"] = (name, paper)
            components[name] = module
        elif "tokenizer" in name:
            encoder = architecture.configs.get(name.replace("tokenizer", "text_encoder"), {})
            components[name] = placeholder_tokenizer(encoder.get("max_position_embeddings"))
        elif name in architecture.configs:
            components[name] = build_component(architecture, name, kind, dtype)
        else:
            components[name] = None
    pipeline = architecture.pipeline(**components, **architecture.settings())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, paper


def _bring_buffers(module: nn.Module) -> None:
    for owner in module.modules():
        owner._buffers.update(
            {name: torch.ones_like(b, device="cpu") for name, b in owner._buffers.items() if b is not None}
        )


def placeholder_tokenizer(longest: int | None) -> PreTrainedTokenizerFast:
    """Knows no word: every one is the same token. Lengths are all that counts on paper.

    `longest` is what its text encoder has positions for; None: any length.
    """
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "</s>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="</s>",
        model_max_length=longest or 512,  # where a pipeline asks for more, it says so
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    )


@functools.cache
def _shapes_only(original: type) -> type:
    """A subclass whose networks are called through `MetaRecorder.compute` and say that they are on the CPU."""

    def through(method: Callable[..., Any], called: str) -> Callable[..., Any]:
        @functools.wraps(method)  # pipelines look for arguments in its signature
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            name, paper = self._mmrl_paper
            return paper.compute(f"{name}.{called}", functools.partial(method, self), args, kwargs)

        return call

    members: dict[str, Any] = {"device": property(lambda self: torch.device("cpu")), "__module__": original.__module__}
    members |= {name: through(getattr(original, name), name) for name in _METHODS if hasattr(original, name)}
    return type(original.__name__, (original,), members)


def _moved(value: Any, device: str) -> Any:
    """The structure with its tensors on `device`; zeros, where they come from the meta device."""

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_meta and device != "meta":
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        return tensor.to(device)

    def move_distribution(distribution: DiagonalGaussianDistribution) -> DiagonalGaussianDistribution:
        moved = copy(distribution)
        vars(moved).update({name: move(each) for name, each in vars(moved).items() if isinstance(each, Tensor)})
        return moved

    return map_leaves(Tensor, move, map_leaves(DiagonalGaussianDistribution, move_distribution, value))


# How much memory operations need: the bytes that live, and the most that lived at once.


class AllocationTracker(TorchDispatchMode):
    """Counts what is allocated while it is open, until it is freed, be that after it was closed.

    Sees what an allocator would: storages, not tensors, so that views are free and what autograd keeps is counted.
    What was there before is not. It may be opened again and again.

    >>> with AllocationTracker() as bytes_:
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


class FullMaskMode(TorchDispatchMode):
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
