"""A small run on the Gaussian policy: build it, break it, resume it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrl.config.algorithm import AdvantageConfig, GRPOConfig
from mmrl.config.optimizer import OptimizerConfig
from mmrl.config.training import TrainingConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.rewards.base import InvalidAnswer, Reward, RewardInput
from mmrl.rewards.suite import RewardSuite
from mmrl.training.credit import Credit
from mmrl.training.display import QuietDisplay
from mmrl.training.experience import OnlineRollouts
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.trackers import JsonlTracker
from mmrl.training.trainer import Trainer
from tests.training.gaussian_policy import GaussianPolicy

TARGET = 1.0


class Nearness(Reward):
    """Minus the squared distance of each number from the target."""

    name, needs, range = "nearness", ("text",), (-100.0, 0.0)
    fails_on: Callable[[RewardInput], bool] = staticmethod(lambda item: False)

    def score_one(self, item: RewardInput) -> float:
        if self.fails_on(item):
            raise ConnectionError("the scorer is down")
        numbers = [float(word) for word in (item.text or "").split()]
        if not numbers:
            raise InvalidAnswer("no numbers")
        return -sum((number - TARGET) ** 2 for number in numbers)


def samples(count: int = 8) -> list[Sample]:
    return [Sample(id=f"s{n}", prompt=f"number {n}", source="even" if n % 2 == 0 else "odd") for n in range(count)]


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    def make(
        run: Path = tmp_path / "run",
        reward: Reward | None = None,
        algorithm: GRPOConfig | None = None,
        optimizer: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        micro_batch: int = 32,
        groups: int = 4,
        group_size: int = 8,
        **more: Any,
    ) -> Trainer:
        run.mkdir(parents=True, exist_ok=True)
        policy = GaussianPolicy()
        config = TrainingConfig(**({"iterations": 6, "save_every": 2} | (training or {})))
        settings = algorithm or GRPOConfig(advantage=AdvantageConfig(std="group"), clip={"low": 0.2})
        objective = PolicyGradient(policy, settings)
        suite = RewardSuite([(reward or Nearness(), 1.0)])
        source = OnlineRollouts(
            policy=policy,
            acting=objective.acting,
            prompts=PromptSampler(samples(), groups, seed=0),
            suite=suite,
            credit=Credit(settings.advantage, suite.weights),
            group_size=group_size,
            micro_batch=micro_batch,
            min_valid_share=config.min_valid_share,
            seed=3,
        )
        return Trainer(
            policy=policy,
            objective=objective,
            source=source,
            optimizer_config=OptimizerConfig(**({"lr": 0.05} | (optimizer or {}))),
            config=config,
            seed=3,
            run=run,
            trackers=[JsonlTracker(run)],
            display=QuietDisplay(),
            **more,
        )

    return make
