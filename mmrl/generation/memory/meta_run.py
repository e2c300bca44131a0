"""Run a pipeline whose networks are on torch's meta device, and count what they would allocate.

The pipeline's own code and its scheduler compute on the CPU, with zeros for the outputs of networks. A call of a
network moves its inputs to the meta device and its outputs back, and its allocations are counted. So a policy can be
rolled out and replayed without weights, at any size, and no memory formula has to be maintained per model.
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
"""The methods that pipelines call on a network."""

_LEFT_OUT = ("safety_checker", "feature_extractor", "image_encoder")
"""Components that read pixels, which a meta run does not have; pipelines work without them."""


class MetaRecorder:
    """The allocations and waiting graphs of a pipeline's networks."""

    def __init__(self) -> None:
        self.bytes = AllocationTracker()
        self.peaks: dict[str, int] = {}
        """The peak of the calls without gradients, by `component.method`."""
        self.graphs: list[Tensor] = []
        """The outputs that wait for their backward pass."""
        self._known: dict[tuple[str, str] | None, Any] = {}  # without gradients, equal shapes have equal outputs
        self._inside = False

    def compute(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `method` on the meta device; return zeros of its output's structure on the CPU."""
        if self._inside:
            return method(*args, **kwargs)
        key = None if torch.is_grad_enabled() else (name, repr(tree_spec((args, kwargs))))
        if key in self._known:
            return zeros(self._known[key])
        self._inside = True
        if key:
            self.bytes.restart()
        start = self.bytes.now
        try:
            with fused_attention(), self.bytes, FullMaskMode():
                output = method(*_moved(args, "meta"), **_moved(kwargs, "meta"))
        finally:
            self._inside = False
        on_cpu = _moved(output, "cpu")
        if key is None:
            map_leaves(Tensor, self._keep, output)
        else:
            self.peaks[name] = max(self.peaks.get(name, 0), self.bytes.peak - start)
            self._known[key] = tree_spec(on_cpu)
        return on_cpu

    def backward(self) -> None:
        """Run the backward pass of all waiting outputs."""
        with fused_attention(), self.bytes, FullMaskMode():  # recomputed activations attend too
            torch.autograd.backward(self.graphs, [torch.empty_like(each) for each in self.graphs])
        self.graphs.clear()

    def _keep(self, output: Tensor) -> None:
        if output.requires_grad:
            self.graphs.append(output)


def meta_pipeline(architecture: Architecture, dtype: torch.dtype) -> tuple[DiffusionPipeline, MetaRecorder]:
    """Return a pipeline with networks on the meta device, and the recorder of their calls."""
    recorder = MetaRecorder()
    components: dict[str, Any] = {}
    for name, kind in architecture.classes():
        if kind is None or name in _LEFT_OUT:
            components[name] = None
        elif issubclass(kind, nn.Module):
            module = build_component(architecture, name, kind, dtype)
            if "vae" in name:  # pipelines compute with the mean and spread of its latents
                for owner in module.modules():
                    made = {key: torch.ones_like(b, device="cpu") for key, b in owner._buffers.items() if b is not None}
                    owner._buffers.update(made)
            original: Any = kind
            module.__class__ = _shapes_only(original)
            vars(module)["_mmrl_meta"] = (name, recorder)
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
    return pipeline, recorder


def placeholder_tokenizer(longest: int | None) -> PreTrainedTokenizerFast:
    """Return a tokenizer that maps every word to the same token: a meta run depends on lengths only.

    `longest` is the number of positions of its text encoder; None: any length.
    """
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "</s>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="</s>",
        model_max_length=longest or 512,  # a pipeline that needs more passes max_length
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    )


@functools.cache
def _shapes_only(original: type) -> type:
    """Return a subclass whose methods run through `MetaRecorder.compute` and whose `device` is the CPU."""

    def through(method: Callable[..., Any], called: str) -> Callable[..., Any]:
        @functools.wraps(method)  # pipelines look for arguments in its signature
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            name, recorder = self._mmrl_meta
            return recorder.compute(f"{name}.{called}", functools.partial(method, self), args, kwargs)

        return call

    members: dict[str, Any] = {"device": property(lambda self: torch.device("cpu")), "__module__": original.__module__}
    members |= {name: through(getattr(original, name), name) for name in _METHODS if hasattr(original, name)}
    return type(original.__name__, (original,), members)


def _moved(value: Any, device: str) -> Any:
    """Return the structure with its tensors on `device`; tensors from the meta device become zeros."""

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_meta and device != "meta":
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        return tensor.to(device)

    def move_distribution(distribution: DiagonalGaussianDistribution) -> DiagonalGaussianDistribution:
        moved = copy(distribution)
        vars(moved).update({name: move(each) for name, each in vars(moved).items() if isinstance(each, Tensor)})
        return moved

    return map_leaves(Tensor, move, map_leaves(DiagonalGaussianDistribution, move_distribution, value))


class AllocationTracker(TorchDispatchMode):
    """A mode that counts the bytes allocated while it is open, until they are freed, even after it is closed.

    Like an allocator it counts storages, not tensors: views are free, and tensors that autograd keeps are counted.
    Storages from before are not. It may be opened repeatedly.

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
        """Reset the peak to the current number of bytes."""
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
    """A mode for values that the meta device lacks: masks select everything, their complements nothing.

    Text encoders test whether any token is padding, to skip a mask (the answer is no); joint attention gathers the
    tokens that are not padding.
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
    """While open, attention on the meta device is fused as on a GPU, without the matrix of all scores.

    By default torch uses the plain formula there, which allocates [B, heads, N, N].
    """
    plain = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return (_fused if query.is_meta else plain)(query, *args, **kwargs)

    # The function itself is replaced: a mode is not active while autograd recomputes activations.
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
