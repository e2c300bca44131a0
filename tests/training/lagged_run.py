"""Runs on the token policy whose rollouts a thread samples ahead, beginning anew or from a checkpoint."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mmrl.config.algorithms.policy_gradient import GRPOConfig, MismatchConfig, PolicyGradientConfig
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.training.rollouts.behaviour import BehaviourSchedule, Cancellation, NewestBehaviour
from mmrl.training.rollouts.importance_correction import CorrectedRollouts, ImportanceCorrection
from mmrl.training.rollouts.lagged_rollouts import LaggedRollouts
from mmrl.training.rollouts.sampling_copy import sampling_copy
from mmrl.training.rollouts.streamed_rollouts import StreamedRollouts
from mmrl.training.run.timers import Phases
from mmrl.training.training_loop import TrainingLoop
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Right, source, trainer

ITERATIONS = 6


class Sleepy(Right):
    """Takes a random time."""

    def score_one(self, item: RewardInput) -> float:
        time.sleep(random.random() / 500)
        return super().score_one(item)


def lagged_trainer(
    run: Path,
    lag: int,
    reward: Reward | None = None,
    corrected: bool = False,
    algorithm: PolicyGradientConfig | None = None,
    policy: Any = None,
    stream: bool = False,
    settings: dict[str, Any] | None = None,
    interrupt: bool = False,
    **changes: Any,
) -> TrainingLoop:
    """Return a run with a lag, without a thread for lag -1."""
    policy = policy or TokenPolicy()
    algorithm = algorithm or GRPOConfig()
    if lag < 0:
        return trainer(run, source(policy, reward, **(settings or {})), algorithm, **changes)
    cancellation = Cancellation()
    sampler = sampling_copy(policy)
    online = source(sampler, reward, sampling_weights=cancellation.checked, **(settings or {}))
    iterations = changes.get("training", {}).get("iterations", ITERATIONS)
    schedule = BehaviourSchedule(policy, lag, nullcontext)
    correction = ImportanceCorrection(policy, MismatchConfig().cap) if corrected else None
    if stream:
        streamed = StreamedRollouts(online, sampler, schedule, iterations, cancellation, correction)
        return trainer(run, streamed, algorithm, policy=policy, ahead=streamed, **changes)
    newest = NewestBehaviour(sampler) if interrupt else None
    lagged = LaggedRollouts(online, sampler, schedule, iterations, cancellation, newest)
    made = trainer(run, online, algorithm, policy=policy, ahead=lagged, **changes)
    made.source = lagged if correction is None else CorrectedRollouts(lagged, correction)
    return made


def go_on(run: str, lag: int, corrected: bool, stream: bool = False) -> None:
    """Train to the end, from wherever the folder stands; rewards take random times."""
    made = lagged_trainer(Path(run), lag, Sleepy(), corrected, training={"save_every": 1}, stream=stream)
    if (Path(run) / "metrics.jsonl").exists():
        made.resume()
    made.train()


def phases() -> Phases:
    """Return a recorder."""
    return Phases()
