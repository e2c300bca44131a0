"""A pipeline on paper: it runs as it always does, but its networks compute shapes only.

The pipeline's own code and its scheduler compute on the CPU, with zeros for what networks return. The networks are on
the meta device: a call goes there and back, and what it would have allocated is counted. So a policy can be rolled
out and replayed without weights, at any size, and no formula has to be kept for each model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmrl.generation.estimate.architecture import Architecture, build_component
from mmrl.generation.estimate.live_bytes import FullMasks, LiveBytes, fused_attention
from mmrl.generation.tree import map_leaves, outline, zeros

_METHODS = ("forward", "encode", "decode")
"""What pipelines call on a network."""

_LEFT_OUT = ("safety_checker", "feature_extractor", "image_encoder")
"""Components that look at pixels, of which there are none; pipelines work without."""


class Paper:
    """What the networks of one pipeline have allocated, by network."""

    def __init__(self) -> None:
        self.bytes = LiveBytes()
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
        asked = None if torch.is_grad_enabled() else (name, repr(outline((args, kwargs))))
        if asked in self._known:
            return zeros(self._known[asked])
        self._inside = True
        if asked:
            self.bytes.restart()
        start = self.bytes.now
        try:
            with fused_attention(), self.bytes, FullMasks():
                answer = method(*_moved(args, "meta"), **_moved(kwargs, "meta"))
        finally:
            self._inside = False
        shown = _moved(answer, "cpu")
        if asked is None:
            map_leaves(Tensor, self._keep, answer)
        else:
            self.peaks[name] = max(self.peaks.get(name, 0), self.bytes.peak - start)
            self._known[asked] = outline(shown)
        return shown

    def backward(self) -> None:
        """Of all answers that wait."""
        with fused_attention(), self.bytes, FullMasks():  # recomputed activations attend too
            torch.autograd.backward(self.graphs, [torch.empty_like(each) for each in self.graphs])
        self.graphs.clear()

    def _keep(self, answer: Tensor) -> None:
        if answer.requires_grad:
            self.graphs.append(answer)


def pipeline_on_paper(architecture: Architecture, dtype: torch.dtype) -> tuple[DiffusionPipeline, Paper]:
    """The pipeline, ready to be called, and the record of what its networks do."""
    paper = Paper()
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
            components[name] = stand_in_tokenizer(encoder.get("max_position_embeddings"))
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


def stand_in_tokenizer(longest: int | None) -> PreTrainedTokenizerFast:
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
    """A subclass whose networks are called through `Paper.compute` and say that they are on the CPU."""

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
