"""The reward zoo. Stands alone: importable from any trainer or notebook, and never silently wrong.

    suite = RewardSuite([(load("compressibility"), 1.0)])
    suite.score([RewardInput(id="0", group=0, prompt="a red circle", image=image)]).values["total"]

To add one: extend `Reward`, state `name`, `needs` and `range`, write `score_one`; offer it by `register`, by an entry
point of the group `mmrl.rewards`, or as `path/to/file.py:name`. Raise `InvalidAnswer` when the answer is malformed and
let everything else escape: a failed scorer becomes NaN and is counted, never a zero.
"""

from mmrl.rewards.base import (
    InvalidAnswer,
    Reward,
    RewardContext,
    RewardError,
    RewardInput,
    RewardOutput,
    Status,
)
from mmrl.rewards.inputs import reward_input
from mmrl.rewards.registry import available, describe, load, register
from mmrl.rewards.suite import RewardSuite

__all__ = [
    "InvalidAnswer",
    "Reward",
    "RewardContext",
    "RewardError",
    "RewardInput",
    "RewardOutput",
    "RewardSuite",
    "Status",
    "available",
    "describe",
    "load",
    "register",
    "reward_input",
]
