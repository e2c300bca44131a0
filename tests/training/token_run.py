"""Sources and trainers on the token policy."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig, PolicyGradientConfig
from mmrl.config.training import OptimizerConfig, TrainingConfig
from mmrl.data.prompts import PromptSampler
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RowStart
from mmrl.training.experience import Experience
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.run.display import QuietDisplay
from mmrl.training.run.timers import Phases
from mmrl.training.run.trackers import JsonlTracker
from mmrl.training.training_loop import TrainingLoop
from tests.training.token_policy import TokenPolicy, questions


class Right(Reward):
    """1 for the answer, a half where it begins as the answer does."""

    name, needs, range = "right", ("text", "references.answer"), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        expected = str(item.references["answer"])
        return 1.0 if item.text == expected else 0.5 * (bool(item.text) and str(item.text)[0] == expected[0])


class Exact(Right):
    """1 for the answer, and nothing else."""

    name = "exact"

    def score_one(self, item: RewardInput) -> float:
        return float(item.text == item.references["answer"])


def source(policy: TokenPolicy | None = None, reward: Reward | None = None, **changes: Any) -> OnlineRollouts:
    """Groups of 6 answers to 4 of 8 questions; a rollout of 12 rows holds two of them."""
    settings: dict[str, Any] = {
        "policy": policy or TokenPolicy(),
        "sampling_weights": nullcontext,
        "prompts": PromptSampler(questions(), 4, seed=0),
        "suite": RewardSuite([(reward or Right(), 1.0)], min_valid_share=0.5),
        "advantage_estimator": AdvantageEstimator(AdvantageConfig(), {"right": 1.0}),
        "group_size": 6,
        "micro_batch": 12,
        "seed": 3,
    }
    return OnlineRollouts(**(settings | changes))


def collect(source: Any, iteration: int = 0, progress: float = 0.0) -> Experience:
    return source.collect(iteration, progress, Phases())


def starts_of_groups(rollout: Rollout) -> set[tuple[int, RowStart | None]]:
    """Return the different pairs of a group and of what a row of it started with beside its sample."""
    starts = rollout.starts or [None] * rollout.rows
    return set(zip(rollout.group_index.tolist(), starts, strict=True))


def trainer(
    run: Path, source: OnlineRollouts, algorithm: PolicyGradientConfig | None = None, **changes: Any
) -> TrainingLoop:
    """Six iterations with a checkpoint after every second."""
    run.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"iterations": 6, "save_every": 2} | changes.pop("training", {})
    policy = changes.pop("policy", None) or source.policy
    return TrainingLoop(
        policy=policy,
        objective=changes.pop("objective", None) or PolicyGradient(policy, algorithm or GRPOConfig()),
        source=source,
        optimizer_config=OptimizerConfig(lr=changes.pop("lr", 0.1)),
        config=TrainingConfig(**settings),
        seed=3,
        run=run,
        trackers=[JsonlTracker(run)],
        display=QuietDisplay(),
        **changes,
    )
