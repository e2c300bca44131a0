"""Another scheduler for a pipeline: some ship with one that cannot be trained through."""

from __future__ import annotations

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
