"""The components that a pipeline calls in every step: denoisers, networks beside them (ControlNets), and guiders.

Denoiser calls are intercepted: they can be counted, computed with gradients, or answered without computation. The
module is never wrapped: pipelines read its `config` and `dtype`. Only its call is replaced, on the instance, during one
call of the pipeline: the hooks on the module run in calls that are computed, and in no others, since those of FSDP wait
for other processes.

A guider may have state: adaptive projected guidance averages its corrections over steps (arXiv:2410.02416). The state
is read after every step of a rollout, and restored after every step that a replay skips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from diffusers import DiffusionPipeline, ModelMixin
from diffusers.guiders import BaseGuidance
from torch import Tensor, nn

from mmrl.config.policy import PipelineAttention
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.replay_cache import replaced_attributes
from mmrl_kernels.integrations.diffusers import use_attention
from mmrl_kernels.registry import KernelError

if TYPE_CHECKING:
    from mmrl.generation.diffusion.loops import Loop

DENOISERS = ("transformer", "transformer_2", "unconditional_transformer", "unet")
"""The component names of denoisers in pipelines."""

BRANCHES = ("controlnet",)
"""The component names of networks whose output is only an input of the next denoiser call."""

GuidanceState = list[Any]
"""The running average of each buffer: a tensor, or 0 before its first step."""


def find_denoisers(pipeline: DiffusionPipeline) -> dict[str, ModelMixin]:
    """Return the denoisers of a pipeline by component name.

    Raises:
        UnsupportedError: the pipeline has no component of a known name.
    """
    found = {name: getattr(pipeline, name, None) for name in DENOISERS}
    denoisers = {name: module for name, module in found.items() if isinstance(module, nn.Module)}
    if not denoisers:
        raise UnsupportedError(f"{type(pipeline).__name__} has no {', '.join(DENOISERS)} to train")
    return denoisers


def find_branches(pipeline: DiffusionPipeline) -> list[nn.Module]:
    """Return the networks beside the denoisers that a pipeline calls in every step."""
    return [each for name in BRANCHES if isinstance(each := getattr(pipeline, name, None), nn.Module)]


@contextmanager
def restore_attention(denoisers: Mapping[str, ModelMixin]) -> Iterator[None]:
    """Restore the attention processors on exit: PAG pipelines do so only if their call is not interrupted."""
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
    loop: Loop,
    precision: Callable[[], AbstractContextManager[Any]],
) -> Iterator[None]:
    """While open, `loop` provides the output of each denoiser call; computations run under `precision`."""

    def intercepted(call: Callable[..., Any]) -> Callable[..., Any]:
        def through_loop(*args: Any, **kwargs: Any) -> Any:
            def compute() -> Any:
                with precision():
                    return call(*args, **kwargs)

            loop.on_denoiser_call()  # before the hooks: those of FSDP and DDP read the grad mode, which it sets
            return loop.on_denoise(compute, (args, kwargs))

        return through_loop

    def intercepted_branch(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: loop.on_branch(lambda: forward(*args, **kwargs))

    replaced: list[tuple[Any, str, Any]] = []
    for module in denoisers.values():
        name = "_call_impl" if module._compiled_call_impl is None else "_compiled_call_impl"  # all that __call__ calls
        replaced.append((module, name, intercepted(getattr(module, name))))
    replaced += [(module, "forward", intercepted_branch(module.forward)) for module in branches]
    with replaced_attributes(replaced):
        yield


def guiders_of(pipeline: DiffusionPipeline) -> list[BaseGuidance]:
    """Return the guiders among a pipeline's components."""
    return [each for each in pipeline.components.values() if isinstance(each, BaseGuidance)]


class Guiders:
    """The guiders of a pipeline, with their scale and state."""

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        self._pipeline: Any = pipeline
        self._guiders = guiders_of(pipeline)

    @property
    def scale(self) -> float:
        """The guidance scale of the call that runs; it can be set between two denoiser calls, until the call ends.

        Raises:
            UnsupportedError: the pipeline has none, or reads it but once.
        """
        scale = getattr(self._pipeline, "_guidance_scale", None)
        if self._guiders or not isinstance(scale, int | float):
            raise UnsupportedError(f"{type(self._pipeline).__name__} has no guidance scale that could change from step "
                                   "to step: leave sampling.zigzag out")  # fmt: skip
        return float(scale)

    @scale.setter
    def scale(self, scale: float) -> None:
        self._pipeline._guidance_scale = scale

    @contextmanager
    def at_scale(self, guidance_scale: float | None) -> Iterator[None]:
        """While open, the guiders use this scale; None: their own. Pipelines with guiders take no `guidance_scale`."""
        scaled = [each for each in self._guiders if hasattr(each, "guidance_scale") and guidance_scale is not None]
        with replaced_attributes((each, "guidance_scale", guidance_scale) for each in scaled):
            yield

    def read(self) -> GuidanceState:
        """Return a copy of the current state."""
        return [_copied(buffer.running_average) for buffer in self._buffers()]

    def write(self, state: GuidanceState) -> None:
        """Restore a state that `read` returned."""
        for buffer, average in zip(self._buffers(), state, strict=True):
            buffer.running_average = _copied(average)

    def _buffers(self) -> list[Any]:
        values = [value for guider in self._guiders for value in vars(guider).values()]
        return [value for value in values if hasattr(value, "running_average")]


def _copied(average: Any) -> Any:
    return average.detach().clone() if isinstance(average, Tensor) else average


def set_attention(denoisers: Mapping[str, Any], backend: PipelineAttention) -> str:
    """Install the configured attention backend; return a line with the choice for each denoiser and its reason.

    Raises:
        ConfigError: the requested backend does not support a denoiser.
    """
    try:
        chosen = {name: use_attention(denoiser, backend) for name, denoiser in denoisers.items()}
    except KernelError as err:
        raise ConfigError(f"policy.attention: {err}") from err
    return "; ".join(f"attention of {name}: {choice.name} ({choice.reason})" for name, choice in chosen.items())
