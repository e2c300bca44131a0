"""Another scheduler for a pipeline: some ship with one that cannot be trained through."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any

import diffusers
from diffusers import SchedulerMixin

from mmrl.config.section import ConfigError


def scheduler_class(name: str) -> Any:
    """A scheduler of diffusers by its class's name.

    Raises:
        ConfigError: there is none of this name.
    """
    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, SchedulerMixin) and found is not SchedulerMixin):
        known = [each for each in dir(diffusers) if each.endswith("Scheduler")]
        near = [each for each in known if each.removesuffix("Scheduler") == name] or get_close_matches(name, known, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"policy.scheduler: {name} is no scheduler of diffusers {diffusers.__version__}{hint}")
    return found


def exchanged(scheduler: Any, name: str) -> Any:
    """A scheduler of another class with the settings of the one that a pipeline came with.

    Clipping is no setting to inherit by default: DDIM clips x_0 to [-1, 1] unless told not to, which latents exceed.
    """
    kind, config = scheduler_class(name), scheduler.config
    clips = "clip_sample" in inspect.signature(kind.__init__).parameters
    return kind.from_config(config, **({"clip_sample": config.get("clip_sample", False)} if clips else {}))
