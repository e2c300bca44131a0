"""A small run on the Gaussian policy: build it, break it, resume it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.training import OptimizerConfig, TrainingConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator, build_history
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.run.display import QuietDisplay
from mmrl.training.run.trackers import JsonlTracker
from mmrl.training.training_loop import TrainingLoop
from tests.training import quickstart_run
from tests.training.fork_server import ForkServer
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


@pytest.fixture(scope="session")
def straight(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the folder of a small uninterrupted run, and its duration in seconds."""
    folder = tmp_path_factory.mktemp("straight") / "a"
    started = time.monotonic()
    child = quickstart_run.start(fork_server, folder)
    assert child.wait() == 0, child.output_text()
    return folder / "run", time.monotonic() - started


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., TrainingLoop]:
    """`build_trainer`, with a run folder of the test's own unless another is given."""

    def make(run: Path = tmp_path / "run", **changes: Any) -> TrainingLoop:
        return build_trainer(run, **changes)

    return make


def build_trainer(
    run: Path,
    reward: Reward | None = None,
    algorithm: GRPOConfig | None = None,
    optimizer: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    micro_batch: int = 32,
    groups: int = 4,
    group_size: int = 8,
    **more: Any,
) -> TrainingLoop:
    run.mkdir(parents=True, exist_ok=True)
    policy = more.pop("policy", None) or GaussianPolicy()
    config = TrainingConfig(**({"iterations": 6, "save_every": 2} | (training or {})))
    settings = algorithm or GRPOConfig(advantage=AdvantageConfig(std="group"), clip={"low": 0.2})
    objective = PolicyGradient(policy, settings)
    suite = RewardSuite([(reward or Nearness(), 1.0)], min_valid_share=config.min_valid_share)
    source = OnlineRollouts(
        policy=policy,
        sampling_weights=objective.sampling_weights,
        prompts=PromptSampler(samples(), groups, seed=0),
        suite=suite,
        advantage_estimator=AdvantageEstimator(settings.advantage, suite.weights),
        group_size=group_size,
        micro_batch=micro_batch,
        seed=3,
        history=build_history(settings.advantage),
        keep_means=settings.ratio == "guard",
    )
    return TrainingLoop(
        policy=policy,
        objective=objective,
        source=source,
        optimizer_config=OptimizerConfig(**({"lr": 0.05} | (optimizer or {}))),
        config=config,
        seed=3,
        run=run,
        trackers=[JsonlTracker(run)],
        **({"display": QuietDisplay()} | more),
    )
