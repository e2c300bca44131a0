"""Adjust the effect of training at inference: RL guidance and LoRA strength.

    pipeline.load_lora_weights("runs/mine/seed-0")
    with rl_guidance(pipeline, scale=1.5):
        pipeline("a red circle")
    with lora_strength(pipeline, 0.7):
        pipeline("a red circle")

Both support any diffusers pipeline with a known denoiser, and restore the pipeline on exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

from diffusers import DiffusionPipeline
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from mmrl.errors import ConfigError
from mmrl.finetuning.trainable import adapters_disabled
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.replay_cache import replaced_attributes

Base: TypeAlias = DiffusionPipeline | Callable[[], AbstractContextManager[None]]
"""The model before training: a separate pipeline, or a function whose context restores it (`policy.reference`)."""


@contextmanager
def rl_guidance(pipeline: DiffusionPipeline, scale: float, base: Base | None = None) -> Iterator[None]:
    """While open, denoisers return base + scale * (tuned - base): RL guidance (RLG, arXiv:2508.21016).

    A scale between 0 and 1 interpolates between the two models, above 1 it extrapolates beyond the trained one; in the
    paper it rescales the KL coefficient of training. 0 and 1 are exactly the base and the trained model, at the cost of
    one denoiser call; other scales need two. Classifier-free guidance acts on the result.

    Args:
        base: the model before training; None: this pipeline without its LoRA.

    Raises:
        ConfigError: `base` is None and no LoRA is loaded, or the two pipelines have different denoisers.
    """
    denoisers = find_denoisers(pipeline)
    others: dict[str, Any] = dict(denoisers)
    as_base: Callable[[], AbstractContextManager[None]]
    if base is None:
        layers = lora_layers(pipeline, "rl_guidance has no base to compare with: load a LoRA, or pass the base")
        as_base = lambda: adapters_disabled(layers)  # noqa: E731
    elif isinstance(base, DiffusionPipeline):
        others, as_base = dict(find_denoisers(base)), nullcontext
        if missing := ", ".join(denoisers.keys() ^ others.keys()):
            raise ConfigError(f"rl_guidance: {missing} is in only one of the two pipelines")
    else:
        as_base = base

    def guided(tuned: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if scale == 1:
                return tuned(*args, **kwargs)
            with as_base():
                before = plain(*args, **kwargs)
            return before if scale == 0 else extrapolate_outputs(before, tuned(*args, **kwargs), scale)

        return call

    forwards = [(each, "forward", guided(each.forward, others[name].forward)) for name, each in denoisers.items()]
    with replaced_attributes(forwards):
        yield


def extrapolate_outputs(base: Any, tuned: Any, scale: float) -> Any:
    """Return base + scale * (tuned - base) for every tensor of two equal structures, computed in float32."""
    before: list[Tensor] = []
    map_leaves(Tensor, before.append, base)
    following = iter(before)

    def mix(after: Tensor) -> Tensor:
        start = next(following)
        if not after.is_floating_point():
            return after
        return (start.float() + scale * (after.float() - start.float())).to(after.dtype)

    return map_leaves(Tensor, mix, tuned)


@contextmanager
def lora_strength(pipeline: DiffusionPipeline, strength: float) -> Iterator[None]:
    """While open, the denoisers' LoRA is scaled by `strength`: 0 is the base model, 1 the trained model.

    Raises:
        ConfigError: no LoRA is loaded.
    """
    layers = lora_layers(pipeline, "the pipeline has no LoRA whose strength could be set (a whole model was trained?)")
    if strength == 0:
        with adapters_disabled(layers):  # exact, unlike a factor of 0
            yield
        return
    before = [dict(layer.scaling) for layer in layers]
    try:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling = {adapter: scale * strength for adapter, scale in scaling.items()}
        yield
    finally:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling = scaling


def lora_layers(pipeline: DiffusionPipeline, otherwise: str) -> list[Any]:
    """Return the peft layers of the denoisers.

    Raises:
        ConfigError: there are none; `otherwise` is its message.
    """
    modules = [module for denoiser in find_denoisers(pipeline).values() for module in denoiser.modules()]
    if layers := [module for module in modules if isinstance(module, BaseTunerLayer)]:
        return layers
    raise ConfigError(otherwise)
