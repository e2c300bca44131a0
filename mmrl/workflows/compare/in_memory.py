"""Compare policies in memory: the same samples, noise and rewards, and the paired difference of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mmrl.build.datasets import load_samples
from mmrl.build.policies import prepare_samples, without_exploration
from mmrl.config.answers import AnswersConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.results import Evaluation
from mmrl.policy import ReferencePolicy
from mmrl.rewards import Reward, RewardSuite, WeightedReward, load
from mmrl.statistics.intervals import Interval, paired_difference
from mmrl.workflows.trainer import named_reward

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy
    from mmrl.policy import Policy


@dataclass(frozen=True)
class Difference:
    """The paired mean difference of each reward, with its 95 % interval over prompts."""

    intervals: dict[str, Interval]

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {each.mean:+.4g} (95 % interval {each.low:+.4g} to {each.high:+.4g}, {each.n} prompts)"
            for name, each in self.intervals.items()
        )


@dataclass(frozen=True)
class PolicyScores:
    """The scores of one policy; subtract another's of the same comparison for the paired difference."""

    evaluation: Evaluation

    def __sub__(self, other: PolicyScores) -> Difference:
        mine, theirs = self.evaluation, other.evaluation
        names = [name for name in mine.values if name in theirs.values]
        return Difference({name: paired_difference(theirs.by_prompt(name), mine.by_prompt(name)) for name in names})

    def __str__(self) -> str:
        return "\n".join(f"{name}: {self.evaluation.mean(name):.4g}" for name in self.evaluation.values)


def compare(
    *policies: AnyPolicy | ReferencePolicy,
    prompts: str | Path | Sequence[Sample],
    rewards: Sequence[str | Reward | Callable[..., float]],
    draws: int = 1,
    batch: int = 8,
    seed: int = 0,
) -> tuple[PolicyScores, ...]:
    """Score policies on the same samples with the same noise.

    Args:
        policies: those to compare; `policy.base()` is a policy as it was before training.
        prompts: a data set's path, or samples.
        rewards: names, rewards or functions.
        draws: trajectories per sample.
        batch: trajectories in one call of a policy.
        seed: the seed of the noise.

    Returns:
        The scores of each policy, in order.

    Raises:
        ConfigError: there is no reward or no policy.
        EvaluationError: there are no samples.
    """
    if not policies or not rewards:
        raise ConfigError(f"compare: got {len(policies)} policies and {len(rewards)} rewards; at least one of each")
    samples = load_samples(str(prompts)) if isinstance(prompts, str | Path) else list(prompts)
    parts = [
        WeightedReward(load(each) if isinstance(each, str) else named_reward(each)[1], weight=1.0) for each in rewards
    ]
    scores = []
    with closing(RewardSuite(parts)) as suite:
        for policy in policies:
            model: AnyPolicy = policy.policy if isinstance(policy, ReferencePolicy) else policy
            found = evaluate(
                cast("Policy", policy),  # `evaluate` calls its `rollout` alone
                prepare_samples(model, model.config, AnswersConfig(), model.sampling, samples),
                suite,
                draws=draws,
                batch=batch,
                seed=seed,
                sampling=without_exploration(model.sampling),
            )
            scores.append(PolicyScores(found))
    return tuple(scores)
