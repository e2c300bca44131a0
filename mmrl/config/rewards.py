"""What is rewarded."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from mmrl.config.section import Section


class RewardConfig(Section):
    """One named reward."""

    name: str
    """As registered (`mmrl rewards list`), or `path/to/file.py:function` for one of your own."""
    weight: float = 1.0
    """0: watched, and no part of the total. Rewards whose direction is "lower" are subtracted."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the reward's constructor."""
    gate: float | None = None
    """An answer that does not reach this value gets the lowest total there is, whatever else it earned."""
    retries: Annotated[int, Field(ge=0)] = 3
    """How often answers whose scoring failed for a reason that may pass (a busy server) are scored again."""
    deadline_s: PositiveFloat | None = None
    """A call that takes longer is given up: its answers are unscored, with the status `timeout`, for good."""
    batch_size: PositiveInt | None = None
    """Answers a call; unset: as the reward says."""
    concurrency: PositiveInt | None = None
    """Calls at once, for rewards that wait for a server; unset: as the reward says."""


class ScoringConfig(Section):
    """How rewards are put together."""

    cache: str | None = None
    """A file that keeps scores from batch to batch and run to run; unset: none."""
    renormalise: bool = False
    """Where some rewards could not be scored, take the others, scaled up by the weight of what is missing. Unset, such
    an answer is unscored."""
