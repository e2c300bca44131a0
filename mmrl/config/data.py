"""Prompts and how they are grouped into batches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from mmrl.config.section import Section


class DataConfig(Section):
    """Where samples come from and the geometry of one iteration."""

    path: str
    """A JSON Lines file, or `shapeworld:train` for an embedded split."""
    validation: str | None = None
    """Samples for evaluation; unset: no evaluation."""
    heldout: str | None = None
    """A second set to evaluate beside the first, such as compositions that training never shows."""
    groups: PositiveInt = 8
    """Prompts in one iteration."""
    group_size: Annotated[int, Field(ge=2)] = 12
    """Trajectories of each prompt."""
    micro_batch: PositiveInt | None = None
    """Trajectories in one pipeline call, the same for rollout and update; must divide groups x group_size.
    Unset: all in one call."""
