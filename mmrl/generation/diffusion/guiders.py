"""Guidance that is a component of its own, and remembers: a replay that skips steps puts back what those left behind.

Adaptive projected guidance averages its corrections over steps (arXiv:2410.02416). Its buffer is read after every
step of a rollout, and set after every step that a replay goes past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from diffusers import DiffusionPipeline
from diffusers.guiders import BaseGuidance
from torch import Tensor

from mmrl.generation.diffusion.replay_cache import replaced_attributes

Memory = list[Any]
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

    def read(self) -> Memory:
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
