"""Train and compare policies from Python.

`Trainer` takes objects where a recipe has sections, and runs as `mmrl train` does: the run folder is the same, and one
that holds a checkpoint is resumed. `compare` scores policies on the same samples, with the same noise and rewards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mmrl.build.datasets import load_samples
from mmrl.build.policies import prepare_samples, without_exploration
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.data import AnswersConfig, DataConfig
from mmrl.config.rewards import RewardConfig
from mmrl.config.train import TrainConfig
from mmrl.config.training import EvaluationConfig, OptimizerConfig, RunConfig, TrainingConfig
from mmrl.data.sample import Sample
from mmrl.data.sources import source_text, write_source
from mmrl.errors import ConfigError
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.results import Evaluation
from mmrl.policy import ReferencePolicy
from mmrl.rewards import Reward, RewardSuite, WeightedReward, load
from mmrl.rewards.core.registry import reward_factory
from mmrl.rewards.core.routing import SharedLoader
from mmrl.sections import Batch
from mmrl.statistics.intervals import Interval, paired_difference
from mmrl.training.run.run_folder import CONFIG, has_trained
from mmrl.workflows.train import train

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy
    from mmrl.policy import Policy

RewardLike: TypeAlias = str | Reward | Callable[..., float]
"""The name of a reward, a reward, or a function of `image`, `video`, `text`, `prompt`, `references` and so on."""
Rewards: TypeAlias = Mapping[RewardLike, float] | Sequence[RewardLike]
"""Rewards with their weights, or rewards of weight 1."""
Prompts: TypeAlias = str | Path | Sequence[Sample]
"""A data set's path, or samples in memory."""


class Trainer:
    """Trains one policy with one algorithm on one set of prompts."""

    def __init__(
        self,
        policy: AnyPolicy,
        *,
        prompts: Prompts,
        rewards: Rewards = (),
        algorithm: AlgorithmConfig | None = None,
        validation: Prompts | None = None,
        heldout: Prompts | None = None,
        batch: Batch | None = None,
        optimizer: OptimizerConfig | None = None,
        iterations: int = 100,
        seed: int = 0,
        out: str | Path = "runs/python",
        evaluate: EvaluationConfig | None = None,
        training: TrainingConfig | None = None,
    ) -> None:
        """Build the configuration of a run; nothing is written or computed yet.

        Args:
            policy: the model to train, in place.
            prompts: training samples; those in memory are written to `out/prompts.jsonl`, so that the run can resume.
            rewards: names, rewards or functions, with weights; none for imitation and preference pairs.
            algorithm: the objective with its settings; None means `mmrl.GRPO()`.
            validation: samples for evaluation before and after training; None means no evaluation.
            heldout: a second set to evaluate on, such as prompts of another kind.
            batch: the sizes of an iteration; None means `mmrl.Batch()`.
            optimizer: AdamW and its schedule; None means `mmrl.AdamW()`.
            iterations: the number of iterations.
            seed: the seed of all randomness of the run. The adapters were initialised with the policy, from torch's
                global generator: call `torch.manual_seed` before you make it.
            out: the run folder.
            evaluate: the settings of evaluations; None means the default ones.
            training: further settings of the loop; `iterations` overrides its own.

        Raises:
            ConfigError: a setting is invalid, or does not fit another one.
        """
        self.policy, self.folder = policy, Path(out)
        self._sets = {"prompts": prompts, "validation": validation, "heldout": heldout}
        self._load_reward = SharedLoader()
        for name, samples in self._sets.items():
            for each in () if samples is None or isinstance(samples, str | Path) else samples:
                if not isinstance(each, Sample):
                    raise ConfigError(f"{name}: {each!r:.40} is no sample: write mmrl.Sample(id='1', prompt='...')")
        if isinstance(rewards, str):
            raise ConfigError(f"rewards: write [{rewards!r}], or {{{rewards!r}: 1.0}}")
        batch = batch or Batch()
        weighted = rewards.items() if isinstance(rewards, Mapping) else [(each, 1.0) for each in rewards]
        self.config = TrainConfig(
            name=self.folder.name,
            seed=seed,
            policy=policy.config,
            sampling=policy.sampling,
            algorithm=algorithm or GRPOConfig(),
            rewards=tuple(starmap(self._reward, weighted)),
            data=DataConfig(
                path=str(self._path("prompts")),
                validation=self._path("validation"),
                heldout=self._path("heldout"),
                groups=batch.groups,
                group_size=batch.group_size,
                micro_batch=batch.micro_batch,
            ),
            optimizer=optimizer or OptimizerConfig(),
            training=(training or TrainingConfig()).model_copy(update={"iterations": iterations}),
            evaluation=evaluate or EvaluationConfig(),
            run=RunConfig(dir=str(self.folder)),
        )

    def train(self) -> Path:
        """Train, or resume if `out` holds a run, and return the run folder.

        Raises:
            ConfigError: the configuration cannot work, or differs from that of the run to resume.
            RunError: the run must not go on.
        """
        resume = self.folder if (self.folder / CONFIG).is_file() and has_trained(self.folder) else None
        for name, samples in self._sets.items():
            if samples is not None and not isinstance(samples, str | Path):
                path = self.folder / f"{name}.jsonl"
                if resume is None:
                    write_source(samples, path)
                elif not path.is_file() or path.read_text(encoding="utf-8") != source_text(samples, path):
                    raise ConfigError(
                        f"{path} does not hold the samples of `{name}`, which this run began with: pass the same ones, "
                        "or choose another `out`"
                    )
        return train(self.config, resume, policy=self.policy, load_reward=self._load_reward)

    def _path(self, name: str) -> str | None:
        samples = self._sets[name]
        if samples is None:
            return None
        return str(samples if isinstance(samples, str | Path) else self.folder / f"{name}.jsonl")

    def _reward(self, reward: RewardLike, weight: float) -> RewardConfig:
        if isinstance(reward, str):
            return RewardConfig(name=reward, weight=weight)
        name, built = named_reward(reward)
        self._load_reward.put(name, built)
        return RewardConfig(name=name, weight=weight)


def named_reward(reward: Reward | Callable[..., float]) -> tuple[str, Reward]:
    """Return a reward and the name under which a recipe could load it; a function becomes a reward.

    Raises:
        ConfigError: a function without a name, such as a lambda.
    """
    if isinstance(reward, Reward):
        return reward.name, reward
    name = getattr(reward, "__name__", "<lambda>")
    if not name.isidentifier():
        raise ConfigError(f"rewards: {reward!r} has no name to log its values under; define it with `def`")
    try:
        file: Any = inspect.getsourcefile(reward)
    except TypeError:
        file = None
    return (f"{file}:{name}" if file and Path(file).is_file() else name), reward_factory(reward, name)()


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
