"""What is rewarded."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mmrl.config.section import Section


class RewardConfig(Section):
    """One named reward."""

    name: str
    """As registered (`mmrl rewards list`), or `path/to/file.py:function` for one of your own."""
    weight: float = 1.0
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the reward's constructor."""
