"""Rewards: a library that works in any trainer or notebook, and that never turns a failure into a score.

    suite = RewardSuite([(load("compressibility"), 1.0)])
    suite.score([RewardInput(id="0", group=0, prompt="a red circle", image=image)]).values["total"]

To add a reward: extend `Reward`, set `name`, `needs` and `range`, and write `score_one`; register it with `register`,
as an entry point of the group `mmrl.rewards`, or use it as `path/to/file.py:name`. Raise `InvalidAnswer` if the answer
is malformed, and let all other exceptions escape: a failed scorer gives NaN and is counted, never a zero.
"""

from mmrl.lazy import exports
from mmrl.rewards.core.adapters import as_trl, as_verl
from mmrl.rewards.core.cache import ScoreCache
from mmrl.rewards.core.executor import WeightedReward
from mmrl.rewards.core.registry import available, describe, load, register, reward_class
from mmrl.rewards.core.reward import BatchReward, GroupReward, PairReward, Reward, RowsReward, spec_of
from mmrl.rewards.core.reward_errors import Failure, InvalidAnswer, RewardError, ScoringFailed, Status
from mmrl.rewards.core.reward_io import (
    RewardContext,
    RewardInput,
    RewardOutput,
    RewardSpec,
    Scope,
    WeightFile,
    reward_input,
)
from mmrl.rewards.core.suite import PendingScores, RewardSuite, TooFewScored

__all__ = [
    "BatchReward",
    "Failure",
    "GroupReward",
    "InvalidAnswer",
    "PairReward",
    "PendingScores",
    "Reward",
    "RewardContext",
    "RewardError",
    "RewardInput",
    "RewardOutput",
    "RewardSpec",
    "RewardSuite",
    "RowsReward",
    "Scope",
    "ScoreCache",
    "ScoringFailed",
    "Status",
    "TooFewScored",
    "WeightFile",
    "WeightedReward",
    "as_trl",
    "as_verl",
    "available",
    "describe",
    "load",
    "register",
    "reward_class",
    "reward_input",
    "spec_of",
]

__getattr__ = exports(__name__, {}, renamed={"Part": "core.executor:WeightedReward"})
