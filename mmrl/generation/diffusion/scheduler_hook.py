"""Interception of scheduler steps: during one call of a pipeline the scheduler's class is replaced by a subclass.

The object stays the same, and so do `isinstance`, `config`, `timesteps`, `sigmas` and the signatures that pipelines
inspect. A loop (`mmrl.generation.diffusion.loops`) provides the result of each step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.scheduler_families import Levels, SchedulerFamily, family_of

if TYPE_CHECKING:
    from mmrl.generation.diffusion.loops import Loop

_STATE = "_mmrl_state"

OwnStep = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass
class SchedulerStep:
    """A call of `scheduler.step`."""

    output: Tensor  # [B, ...] the model output as the pipeline passes it: guided, rescaled, negated
    sample: Tensor  # [B, ...] x
    index: int  # in the schedule
    levels: Levels  # of the whole schedule
    scheduler: Any
    family: SchedulerFamily
    compute: OwnStep  # the scheduler's own step, which returns x' and further tensors
    by_products: tuple[Tensor, ...] | None = None  # the further tensors of the last own step

    def own(self) -> Tensor:
        """Return the scheduler's own x'."""
        following, *others = self.compute(self.output, self.sample)
        self.by_products = tuple(others)
        return following

    def with_noise(self, noise: float) -> Tensor:
        """Return the scheduler's own x' in float32, with `noise` in place of every random number."""
        with _constant_noise(self.scheduler, noise):
            following, *others = self.compute(self.output.float(), self.sample.float())
        self.by_products = tuple(each.to(self.sample.dtype) for each in others)
        return following.float()


class _LoopState:
    """The state of an intercepted scheduler during one call of a pipeline."""

    def __init__(self, loop: Loop, family: SchedulerFamily) -> None:
        self.loop, self.family = loop, family
        self.restart()

    def restart(self) -> None:
        self.next: int | None = None
        self.levels: Levels = []

    def __deepcopy__(self, memo: Any) -> _LoopState:
        """Return a new state, so that a copied scheduler (LTX-2's for sound) is intercepted on its own schedule."""
        return _LoopState(self.loop, self.family)


@contextmanager
def intercept_scheduler(scheduler: Any, loop: Loop) -> Iterator[None]:
    """While open, `loop` provides the result of every step."""
    original: Any = type(scheduler)
    state = _LoopState(loop, family_of(scheduler))
    scheduler.__class__ = _intercepted_class(original)
    setattr(scheduler, _STATE, state)
    try:
        yield
    finally:
        scheduler.__class__ = original
        delattr(scheduler, _STATE)


@functools.cache
def _intercepted_class(original: Any) -> type:
    @functools.wraps(original.set_timesteps)  # pipelines look for `sigmas` and `timesteps` in its signature
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        original.set_timesteps(self, *args, **kwargs)
        state: _LoopState = getattr(self, _STATE)
        state.restart()
        state.loop.on_schedule(self, state.family)

    @functools.wraps(original.step)  # pipelines look for `eta` and `generator` in its signature
    def step(self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        return_dict = kwargs.pop("return_dict", True)
        if kwargs.get("per_token_timesteps") is not None:
            raise UnsupportedError("a step with one noise level per token has no transition here")
        if kwargs.get("variance_noise") is not None:
            raise UnsupportedError("the pipeline chooses the noise of its steps itself")
        state: _LoopState = getattr(self, _STATE)
        if state.next is None:
            state.next = state.family.first_step(self, timestep)
            state.levels = state.family.levels(self)
        index = state.next
        if index >= len(state.levels):
            raise UnsupportedError(f"the pipeline takes more steps than the {len(state.levels)} of its schedule")

        def compute(output: Tensor, x: Tensor) -> tuple[Tensor, ...]:
            _set_step_index(self, index)  # it may be computed more than once
            return original.step(self, output, timestep, x, *args, **kwargs, return_dict=False)

        step = SchedulerStep(model_output, sample, index, state.levels, self, state.family, compute)
        following = state.loop.on_step(step)
        if state.family.has_by_products and step.by_products is None:  # not computed yet, but the pipeline unpacks them
            step.own()
        state.next = index + 1
        _set_step_index(self, state.next)
        return SchedulerOutput(prev_sample=following) if return_dict else (following, *(step.by_products or ()))

    members = {"step": step, "set_timesteps": set_timesteps, "__module__": original.__module__}
    if not hasattr(original, "scale_model_input"):  # Bria calls it unless the scheduler is of *exactly* one class
        members["scale_model_input"] = lambda self, sample, *_: sample
    return type(original.__name__, (original,), members)


def _set_step_index(scheduler: Any, index: int) -> None:
    if hasattr(scheduler, "_step_index"):
        scheduler._step_index = index


@contextmanager
def _constant_noise(scheduler: Any, value: float) -> Iterator[None]:
    """While open, `randn_tensor` in the scheduler's module returns this number."""

    def constant(shape: Any, *, device: Any = None, dtype: Any = None, **_: Any) -> Tensor:
        return torch.full(tuple(shape), value, device=device, dtype=dtype)

    original: Any = type(scheduler).__mro__[1]
    names = inspect.unwrap(original.step).__globals__
    before = names["randn_tensor"]
    names["randn_tensor"] = constant
    try:
        yield
    finally:
        names["randn_tensor"] = before
