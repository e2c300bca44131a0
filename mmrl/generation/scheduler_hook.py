"""A scheduler whose steps are somebody else's: its class is swapped for a subclass while a loop is watched.

The object stays the same, and so do `isinstance`, `config`, `timesteps`, `sigmas` and the signatures that pipelines
inspect. What a step returns is the loop's to say (`mmrl.generation.loops`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from diffusers.schedulers.scheduling_utils import SchedulerOutput
from torch import Tensor

from mmrl.generation.errors import UnsupportedError
from mmrl.generation.families import Family, Levels, family_of

_WATCH = "_mmrl_watch"


@dataclass(frozen=True)
class Step:
    """One call of `scheduler.step`."""

    output: Tensor  # [B, ...] what the pipeline made of the denoiser's answer: guided, rescaled, negated
    sample: Tensor  # [B, ...] x
    index: int  # in the schedule
    levels: Levels  # of the whole schedule
    scheduler: Any
    family: Family
    own: Callable[[], Tensor]  # the scheduler's own x'


class StepWatcher(Protocol):
    """Who decides what the steps of a loop return."""

    def on_schedule(self, scheduler: Any, family: Family) -> None:
        """A schedule was set."""
        ...

    def on_step(self, step: Step) -> Tensor:
        """x' [B, ...]."""
        ...


class _Watch:
    """One watched call of a pipeline: who watches, and how far the loop is."""

    def __init__(self, watcher: StepWatcher, family: Family) -> None:
        self.watcher, self.family = watcher, family
        self.restart()

    def restart(self) -> None:
        self.next: int | None = None
        self.levels: Levels = []

    def __deepcopy__(self, memo: Any) -> _Watch:
        """A pipeline that copies its scheduler (LTX-2, for sound) has the copy watched too, on its own schedule."""
        return _Watch(self.watcher, self.family)


@contextmanager
def watched_scheduler(scheduler: Any, watcher: StepWatcher) -> Iterator[None]:
    """While open, `watcher` decides every step."""
    original: Any = type(scheduler)
    watch = _Watch(watcher, family_of(scheduler))
    scheduler.__class__ = _watched_class(original)
    setattr(scheduler, _WATCH, watch)
    try:
        yield
    finally:
        scheduler.__class__ = original
        delattr(scheduler, _WATCH)


@functools.cache
def _watched_class(original: Any) -> type:
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
        watch: _Watch = getattr(self, _WATCH)
        if watch.next is None:
            watch.next = watch.family.first_step(self, timestep)
            watch.levels = watch.family.levels(self)
        index = watch.next

        def own() -> Tensor:
            return original.step(self, model_output, timestep, sample, *args, **kwargs, return_dict=False)[0]

        following = watch.watcher.on_step(Step(model_output, sample, index, watch.levels, self, watch.family, own))
        watch.next = index + 1
        if hasattr(self, "_step_index"):
            self._step_index = watch.next
        return SchedulerOutput(prev_sample=following) if return_dict else (following,)

    members = {"step": step, "set_timesteps": set_timesteps, "__module__": original.__module__}
    return type(original.__name__, (original,), members)
