"""Where a run's experience comes from, stage by stage, and what is minimised on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.assemble.objectives import build_objective
from mmrl.assemble.rewards import Rewards, build_constraints
from mmrl.config.algorithm import (
    AlgorithmConfig,
    AWMConfig,
    DiffusionNFTConfig,
    FlowRWRConfig,
    OnlineDPOConfig,
    PolicyGradientConfig,
    RejectionSFTConfig,
    RewardGradientConfig,
)
from mmrl.config.geometry import Geometry
from mmrl.config.train import TrainConfig
from mmrl.config.warmup import WarmupAlgorithmConfig
from mmrl.data.sample import Sample
from mmrl.policy import Power
from mmrl.training.chosen_rows import BestAndWorst, Choose, ChosenRows, EveryPair, praised
from mmrl.training.credit import Credit
from mmrl.training.experience import ExperienceSource, OnlineRollouts
from mmrl.training.mismatch import build_mismatch
from mmrl.training.objectives.base import Objective, regresses
from mmrl.training.offline import Demonstrations, PreferencePairs, refuse_without
from mmrl.training.prompt_history import build_history
from mmrl.training.samplers.building import (
    build_draws,
    build_mixed,
    build_prompts,
    build_replay,
    build_weighting,
)
from mmrl.training.stages import Stage, StagedObjective, StagedSource

ONLINE = (
    PolicyGradientConfig,
    DiffusionNFTConfig,
    AWMConfig,
    FlowRWRConfig,
    RejectionSFTConfig,
    OnlineDPOConfig,
    RewardGradientConfig,
)
"""Algorithms that learn from the policy's own scored answers."""


@dataclass(frozen=True)
class Learning:
    """What the Trainer is given: experience, and what is minimised on it."""

    source: ExperienceSource
    objective: Objective


def build_learning(
    config: TrainConfig,
    policy: Any,
    samples: Sequence[Sample],
    warmup_samples: Sequence[Sample],  # of the first stage, if there is one
    rewards: Rewards | None,  # None: nothing is drawn, so nothing is scored
) -> Learning:
    """One stage, or a warm-up and then another."""
    stage = _stage(config, config.algorithm, policy, samples, rewards)
    if config.warmup is None:
        return stage
    warm = _stage(config, config.warmup.algorithm, policy, warmup_samples, None)
    source = StagedSource(
        [Stage(warm.source, warm.objective, config.warmup.iterations), Stage(stage.source, stage.objective)]
    )
    return Learning(source, StagedObjective(source))


def _stage(
    config: TrainConfig,
    algorithm: AlgorithmConfig | WarmupAlgorithmConfig,
    policy: Any,
    samples: Sequence[Sample],
    rewards: Rewards | None,
) -> Learning:
    objective = build_objective(algorithm, policy, config.sampling, rewards)
    data, seed, prompts = config.data, config.seed, build_prompts(config.data, samples, config.seed)
    if isinstance(algorithm, ONLINE):
        if rewards is None:
            raise ValueError(f"{algorithm.name} learns from answers that are scored, and there are no rewards")
        online = OnlineRollouts(
            policy=policy,
            acting=objective.acting,
            prompts=prompts,
            suite=rewards,
            credit=Credit(algorithm.advantage, rewards.weights, build_constraints(config, rewards)),
            group_size=data.group_size,
            micro_batch=Geometry.of(config).micro_batch,
            seed=seed,
            draws=build_draws(data, seed),
            replay=build_replay(data, seed),
            weighting=build_weighting(data),
            mixed=build_mixed(data, samples, seed),
            history=build_history(algorithm.advantage),
            keep_means=isinstance(algorithm, PolicyGradientConfig) and algorithm.ratio == "guard",
            mismatch=build_mismatch(algorithm, policy),
        )
        chosen = choice_of(algorithm, policy.powers)
        if chosen is None:
            return Learning(online, objective)
        few = ChosenRows(online, policy, chosen, online.micro_batch, config.training.updates)
        return Learning(few, objective)
    refuse_without(samples, algorithm.experience, policy)
    rows = data.groups * (2 if algorithm.experience == "pairs" else 1)
    micro_batch = min(rows, data.micro_batch or rows)
    if algorithm.experience == "pairs":
        return Learning(PreferencePairs(policy, prompts, micro_batch), objective)
    return Learning(Demonstrations(policy, prompts, micro_batch, seed), objective)


def choice_of(algorithm: AlgorithmConfig | WarmupAlgorithmConfig, powers: frozenset[Power]) -> Choose | None:
    """Which rows of a rollout are learnt from; None: all that have an advantage, where they are."""
    if isinstance(algorithm, OnlineDPOConfig):
        if algorithm.pairing == "all":
            return EveryPair(algorithm.margin, split=not regresses(powers))
        return BestAndWorst(algorithm.margin)
    return praised if isinstance(algorithm, RejectionSFTConfig) and regresses(powers) else None
