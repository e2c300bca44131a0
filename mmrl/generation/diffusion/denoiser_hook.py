"""Denoisers whose calls can be counted, computed with gradients, or answered without computing.

The module is never wrapped or replaced: pipelines read its `config` and `dtype`, and FSDP keeps hooks on it. Only its
`forward` is replaced, on the instance, while a loop is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from diffusers import DiffusionPipeline, ModelMixin
from diffusers.guiders import BaseGuidance
from torch import Tensor, nn

from mmrl.config.policy import PipelineAttention
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.replay_cache import replaced_attributes
from mmrl_kernels.integrations.diffusers import use_attention
from mmrl_kernels.registry import KernelError

DENOISERS = ("transformer", "transformer_2", "unconditional_transformer", "unet")
"""The names that pipelines give to the networks of their denoising loop."""


BRANCHES = ("controlnet",)
"""Networks whose answer only goes into the next call of a denoiser."""


class DenoiserHandler(Protocol):
    """Who decides what the denoisers of a loop answer."""

    def on_denoiser_call(self) -> None:
        """A denoiser is about to be called; its own hooks come after."""
        ...

    def on_denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        """The denoiser's answer, given a way to compute it and what it is called with."""
        ...

    def on_branch(self, compute: Callable[[], Any]) -> Any:
        """The answer of a network that goes into the next denoiser call, given a way to compute it."""
        ...


def find_denoisers(pipeline: DiffusionPipeline) -> dict[str, ModelMixin]:
    """The denoisers that a pipeline has, by component name.

    Raises:
        UnsupportedError: it has none under a known name.
    """
    found = {name: getattr(pipeline, name, None) for name in DENOISERS}
    denoisers = {name: module for name, module in found.items() if isinstance(module, nn.Module)}
    if not denoisers:
        raise UnsupportedError(f"{type(pipeline).__name__} has no {', '.join(DENOISERS)} to train")
    return denoisers


def find_branches(pipeline: DiffusionPipeline) -> list[nn.Module]:
    """The networks beside the denoisers that a pipeline calls in every step."""
    return [each for name in BRANCHES if isinstance(each := getattr(pipeline, name, None), nn.Module)]


@contextmanager
def restore_attention(denoisers: Mapping[str, ModelMixin]) -> Iterator[None]:
    """Afterwards, denoisers attend as before: PAG pipelines clean up only where they end by themselves."""
    layers: list[Any] = [
        layer for each in denoisers.values() for layer in each.modules() if hasattr(type(layer), "set_processor")
    ]
    before = [layer.processor for layer in layers]
    try:
        yield
    finally:
        for layer, processor in zip(layers, before, strict=True):
            if layer.processor is not processor:
                layer.set_processor(processor)


@contextmanager
def intercept_denoisers(
    denoisers: Mapping[str, ModelMixin],
    branches: Sequence[nn.Module],
    watcher: DenoiserHandler,
    precision: Callable[[], AbstractContextManager[Any]],
) -> Iterator[None]:
    """While open, `watcher` decides what each denoiser call returns; what is computed is computed under `precision`."""

    def watched(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            def compute() -> Any:
                with precision():
                    return forward(*args, **kwargs)

            return watcher.on_denoise(compute, (args, kwargs))

        return call

    def aside(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: watcher.on_branch(lambda: forward(*args, **kwargs))

    modules = list(denoisers.values())
    replaced = [(module, "forward", watched(module.forward)) for module in modules]
    replaced += [(module, "forward", aside(module.forward)) for module in branches]
    with replaced_attributes(replaced):
        # A hook, and the first of all: those of FSDP and DDP look at the grad mode, which the watcher sets.
        handles = [m.register_forward_pre_hook(lambda *_: watcher.on_denoiser_call(), prepend=True) for m in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


# Guidance that is a component of its own, and remembers: a replay that skips steps puts back what those left behind.
#
# Adaptive projected guidance averages its corrections over steps (arXiv:2410.02416). Its buffer is read after every
# step of a rollout, and set after every step that a replay goes past.


GuidanceState = list[Any]
"""The running average of each buffer: a tensor, or 0 before its first step."""


def guiders_of(pipeline: DiffusionPipeline) -> list[BaseGuidance]:
    """The guiders among a pipeline's components."""
    return [each for each in pipeline.components.values() if isinstance(each, BaseGuidance)]


class Guiders:
    """The guiders of a pipeline."""

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        self._guiders = guiders_of(pipeline)

    @contextmanager
    def at_scale(self, guidance_scale: float | None) -> Iterator[None]:
        """While open, they guide at this scale; None: at their own. Pipelines with guiders take no `guidance_scale`."""
        scaled = [each for each in self._guiders if hasattr(each, "guidance_scale") and guidance_scale is not None]
        with replaced_attributes((each, "guidance_scale", guidance_scale) for each in scaled):
            yield

    def read(self) -> GuidanceState:
        """What they remember now."""
        return [_copied(buffer.running_average) for buffer in self._buffers()]

    def write(self, memory: Sequence[Any]) -> None:
        """Make them remember what they did then."""
        for buffer, average in zip(self._buffers(), memory, strict=True):
            buffer.running_average = _copied(average)

    def _buffers(self) -> list[Any]:
        held = [value for guider in self._guiders for value in vars(guider).values()]
        return [value for value in held if hasattr(value, "running_average")]


def _copied(average: Any) -> Any:
    return average.detach().clone() if isinstance(average, Tensor) else average


# Who computes the attention of a pipeline's denoisers, and why.


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
