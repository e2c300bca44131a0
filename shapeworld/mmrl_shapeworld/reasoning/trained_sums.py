"""Policies that learn to answer sums within an experiment, and what they then answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.results import Evaluation
from mmrl.rewards.core.executor import WeightedReward
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.suite import RewardSuite
from mmrl.workflows.train import train

if TYPE_CHECKING:
    from mmrl.understanding.vlm_policy import VLMPolicy


def untrained_policy(*overrides: str) -> VLMPolicy:
    """Return the policy of the recipe `shapes-reasoning` with these changes, as it is before training."""
    return _built(sums_config(*overrides))


def trained_policy(*overrides: str, run: Path | None = None, policy: VLMPolicy | None = None) -> VLMPolicy:
    """Return the policy that the recipe `shapes-reasoning` with these changes trains, without evaluations.

    `run` is a folder for its run, which is left there; None: it is deleted. `policy` is one that an earlier run has
    trained, which goes on with a new optimizer; None: it is built.
    """
    config = sums_config(*overrides)
    policy = policy or _built(config)
    with TemporaryDirectory() as folder:
        place = {"dir": str(run or Path(folder) / "run"), "display": "quiet", "pictures": 0}
        train(config.model_copy(update={"run": config.run.model_copy(update=place)}), policy=policy)
    return policy


def answered(policy: VLMPolicy, samples: Sequence[Sample], seed: int) -> dict[str, Sequence[float]]:
    """Return for one answer to each sample `right`, 1 for the right number, and `tokens`, its length."""
    found = evaluated(policy, samples, batch=256, seed=seed)
    return {"right": found.values["numeric"].tolist(), "tokens": [float(each or 0) for each in found.tokens]}


def evaluated(policy: VLMPolicy, samples: Sequence[Sample], batch: int, seed: int) -> Evaluation:
    """Return one answer to each sample, which is worth 1 for the right number and else 0."""
    suite = RewardSuite([WeightedReward(load("numeric"))])
    found = evaluate(policy, samples, suite, draws=1, batch=batch, seed=seed)
    suite.close()
    return found


def _built(config: TrainConfig) -> VLMPolicy:
    from mmrl.understanding.vlm_policy import VLMPolicy

    policy = build_policy(config.policy, config.sampling)
    assert isinstance(policy, VLMPolicy)
    return policy


def sums_config(*overrides: str) -> TrainConfig:
    """Return the configuration of the recipe `shapes-reasoning` with these changes, without evaluations."""
    return load_config("shapes-reasoning", ["data.validation=null", "evaluation={}", *overrides])
