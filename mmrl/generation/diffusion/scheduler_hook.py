"""A scheduler whose steps are somebody else's: its class is swapped for a subclass while a loop is watched.

The object stays the same, and so do `isinstance`, `config`, `timesteps`, `sigmas` and the signatures that pipelines
inspect. What a step returns is the loop's to say (`mmrl.generation.diffusion.loops`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.scheduler_families import Levels, SchedulerFamily, family_of

_WATCH = "_mmrl_watch"


Own = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass
class Step:
    """One call of `scheduler.step`."""

    output: Tensor  # [B, ...] what the pipeline made of the denoiser's answer: guided, rescaled, negated
    sample: Tensor  # [B, ...] x
    index: int  # in the schedule
    levels: Levels  # of the whole schedule
    scheduler: Any
    family: SchedulerFamily
    compute: Own  # the scheduler's own step: x' first, then whatever else it returns
    by_products: tuple[Tensor, ...] | None = None  # what else the last own step returned

    def own(self) -> Tensor:
        """The scheduler's own x', as the pipeline would get it."""
        following, *others = self.compute(self.output, self.sample)
        self.by_products = tuple(others)
        return following

    def with_noise(self, noise: float) -> Tensor:
        """The scheduler's own x' in float32, with `noise` in place of every number that it would draw."""
        with _constant_noise(self.scheduler, noise):
            following, *others = self.compute(self.output.float(), self.sample.float())
        self.by_products = tuple(each.to(self.sample.dtype) for each in others)
        return following.float()


class StepHandler(Protocol):
    """Who decides what the steps of a loop return."""

    def on_schedule(self, scheduler: Any, family: SchedulerFamily) -> None:
        """A schedule was set."""
        ...

    def on_step(self, step: Step) -> Tensor:
        """x' [B, ...]."""
        ...


class _Watch:
    """One watched call of a pipeline: who watches, and how far the loop is."""

    def __init__(self, watcher: StepHandler, family: SchedulerFamily) -> None:
        self.watcher, self.family = watcher, family
        self.restart()

    def restart(self) -> None:
        self.next: int | None = None
        self.levels: Levels = []

    def __deepcopy__(self, memo: Any) -> _Watch:
        """A pipeline that copies its scheduler (LTX-2, for sound) has the copy watched too, on its own schedule."""
        return _Watch(self.watcher, self.family)


@contextmanager
def intercept_scheduler(scheduler: Any, watcher: StepHandler) -> Iterator[None]:
    """While open, `watcher` decides every step."""
    original: Any = type(scheduler)
    watch = _Watch(watcher, family_of(scheduler))
    scheduler.__class__ = _intercepted_class(original)
    setattr(scheduler, _WATCH, watch)
    try:
        yield
    finally:
        scheduler.__class__ = original
        delattr(scheduler, _WATCH)


@functools.cache
def _intercepted_class(original: Any) -> type:
    @functools.wraps(original.set_timesteps)  # pipelines look for `sigmas` and `timesteps` in its signature
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        original.set_timesteps(self, *args, **kwargs)
        watch: _Watch = getattr(self, _WATCH)
        watch.restart()
        watch.watcher.on_schedule(self, watch.family)

    @functools.wraps(original.step)  # pipelines look for `eta` and `generator` in its signature
    def step(self: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        return_dict = kwargs.pop("return_dict", True)
        if kwargs.get("per_token_timesteps") is not None:
            raise UnsupportedError("a step with one noise level per token has no transition here")
        if kwargs.get("variance_noise") is not None:
            raise UnsupportedError("the pipeline chooses the noise of its steps itself")
        watch: _Watch = getattr(self, _WATCH)
        if watch.next is None:
            watch.next = watch.family.first_step(self, timestep)
            watch.levels = watch.family.levels(self)
        index = watch.next
        if index >= len(watch.levels):
            raise UnsupportedError(f"the pipeline takes more steps than the {len(watch.levels)} of its schedule")

        def compute(output: Tensor, x: Tensor) -> tuple[Tensor, ...]:
            _stand_at(self, index)  # it may be computed more than once
            return original.step(self, output, timestep, x, *args, **kwargs, return_dict=False)

        step = Step(model_output, sample, index, watch.levels, self, watch.family, compute)
        following = watch.watcher.on_step(step)
        if watch.family.has_by_products and step.by_products is None:  # nobody asked, but the pipeline unpacks them
            step.own()
        watch.next = index + 1
        _stand_at(self, watch.next)
        return SchedulerOutput(prev_sample=following) if return_dict else (following, *(step.by_products or ()))

    members = {"step": step, "set_timesteps": set_timesteps, "__module__": original.__module__}
    if not hasattr(original, "scale_model_input"):  # Bria calls it unless the scheduler is of *exactly* one class
        members["scale_model_input"] = lambda self, sample, *_: sample
    return type(original.__name__, (original,), members)


def _stand_at(scheduler: Any, index: int) -> None:
    if hasattr(scheduler, "_step_index"):
        scheduler._step_index = index


@contextmanager
def _constant_noise(scheduler: Any, value: float) -> Iterator[None]:
    """While open, the scheduler's `step` draws this number: it imports the function that draws into its module."""

    def constant(shape: Any, *, device: Any = None, dtype: Any = None, **_: Any) -> Tensor:
        return torch.full(tuple(shape), value, device=device, dtype=dtype)

    original: Any = type(scheduler).__mro__[1]
    names = inspect.unwrap(original.step).__globals__
    drawn = names["randn_tensor"]
    names["randn_tensor"] = constant
    try:
        yield
    finally:
        names["randn_tensor"] = drawn
