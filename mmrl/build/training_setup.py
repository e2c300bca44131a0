"""Build the experience source and the objective of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

from mmrl.build.answering import answering
from mmrl.build.data_samplers import (
    build_alignment,
    build_demonstrations,
    build_group_sampler,
    build_prompts,
    build_replay,
    build_token_budget,
    build_turn_filter,
    build_weighting,
)
from mmrl.build.offline_sources import build_offline_source, build_stored_answers
from mmrl.build.reward_suites import Rewards, build_constraints, named_by_values
from mmrl.config.algorithms.actor_critic import PPOConfig
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.decoder_turns import ReconstructionConfig
from mmrl.config.algorithms.mixture import MixConfig, lead_of
from mmrl.config.algorithms.outcome_learning import OREALConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.algorithms.preference import OnlineDPOConfig
from mmrl.config.algorithms.random_policy_valuation import ROVERConfig
from mmrl.config.algorithms.stored_answers import ALoLConfig
from mmrl.config.algorithms.supervised import RejectionSFTConfig
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.sampling import AnySamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.data.growing_prompts import GrowingSampler
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import Capability
from mmrl.seeds import fold_in
from mmrl.training.experience import ExperienceSource
from mmrl.training.hacking_gauge import HackingGauge
from mmrl.training.objectives.base import Objective, ObjectiveInputs, uses_velocity_loss
from mmrl.training.objectives.reward_blend import BlendedRewards
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator, build_history
from mmrl.training.rollouts.behaviour import BehaviourSchedule, Cancellation, NewestBehaviour
from mmrl.training.rollouts.controllers import ControlledRollouts
from mmrl.training.rollouts.critic_advantages import CriticAdvantages
from mmrl.training.rollouts.demonstrations import demonstrations_of
from mmrl.training.rollouts.importance_correction import CorrectedRollouts, build_importance_correction
from mmrl.training.rollouts.lagged_rollouts import LaggedRollouts
from mmrl.training.rollouts.mean_log_probs import MeanLogProbs
from mmrl.training.rollouts.mixed_source import MixedSource
from mmrl.training.rollouts.model_pairs import ModelPairs, ModelWriters
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.rollouts.outcome_credits import OutcomeCredits
from mmrl.training.rollouts.recorded_pictures import recorded_pictures
from mmrl.training.rollouts.row_selection import BestAndWorst, Choose, EveryPair, RowSelection, positive_advantage_rows
from mmrl.training.rollouts.sampling_copy import sampling_copy
from mmrl.training.rollouts.stages import Stage, StagedObjective, StagedSource
from mmrl.training.rollouts.streamed_rollouts import StreamedRollouts
from mmrl.training.run_models import NamedModels

TERM_STREAM = 5
"""The number of the random stream of the prompts that terms of a mix imitate."""


def objective_class(algorithm: AlgorithmConfig, capabilities: frozenset[Capability]) -> type[Objective]:
    """Return the class of an algorithm's objective on a policy with these capabilities."""
    chosen: type[Objective] = algorithm.objective_class(uses_velocity_loss(capabilities))
    return chosen


def build_objective(
    algorithm: AlgorithmConfig,
    policy: Any,
    sampling: AnySamplingConfig,
    rewards: Rewards | None = None,  # for algorithms that follow their gradient
    models: NamedModels | None = None,
    updates: int | None = None,  # of the whole run, for weights that change with them
) -> Objective:
    """Return the objective that a configuration names."""
    critics = {} if models is None else models.critics
    parts = {} if models is None else models.parts
    inputs = ObjectiveInputs(policy, sampling, rewards, models or {}, critics, parts, updates)
    return objective_class(algorithm, policy.capabilities).build(algorithm, inputs)


def with_learned_weights(objective: Objective, algorithm: AlgorithmConfig, policy: Any) -> Objective:
    """Return the objective, or where the weights of channels are learnt, one that tells their gradients apart."""
    return BlendedRewards(objective, policy, algorithm.advantage.channels) if learns_weights(algorithm) else objective


def learns_weights(algorithm: AlgorithmConfig) -> TypeGuard[PolicyGradientConfig]:
    """Return True if weights of channels are learnt."""
    advantage = getattr(algorithm, "advantage", None)
    return isinstance(advantage, AdvantageConfig) and any(channel.learn for channel in advantage.channels)


def _drift_bound(config: TrainConfig) -> float | None:
    """Return the largest mean difference between a server's log-probabilities and the trainer's.

    None in process, and with a lag, where the weights differ too: the proof of a server's weights has its own bound.
    """
    if config.run.servers is None or config.run.overlap.lag:
        return None
    return config.training.replay_gap_bound(config.policy.dtype, config.sampling.kind)


@dataclass(frozen=True)
class StageInputs:
    """The samples of a stage, prepared for the model that it trains, and its rewards."""

    samples: Sequence[Sample]
    rewards: Rewards | None
    term_samples: Mapping[int, Sequence[Sample]] = field(default_factory=dict)
    """Those of the terms with a `path` of a mix that the stage has and the run does not, by their number."""


@dataclass(frozen=True)
class TrainingSetup:
    """The source of experience and the objective that a `TrainingLoop` takes."""

    source: ExperienceSource
    objective: Objective
    ahead: LaggedRollouts | StreamedRollouts | None = None
    """The source, or the one behind it, if a thread samples."""
    growing: tuple[GrowingSampler, ...] = ()
    """The sources of prompts that add samples, stage by stage."""


def build_training_setup(
    config: TrainConfig,
    policy: Any,
    samples: Sequence[Sample],
    pretraining_samples: Sequence[Sample],  # of the first stage, if there is one
    rewards: Rewards | None,  # None: nothing is sampled, so nothing is scored
    stage_inputs: Sequence[StageInputs] = (),  # of each of `config.stages`
    models: NamedModels | None = None,  # that objectives and rewards may ask
    hacking: HackingGauge | None = None,  # says when rewards learn
    term_samples: Mapping[int, Sequence[Sample]] | None = None,  # of terms of a mix with a `path`, by their number
) -> TrainingSetup:
    """Build one stage, or all stages with the main one last. Prompts are drawn in another order in each stage."""
    online = config.training.iterations - config.earlier_iterations
    main = _stage(config, config.algorithm, policy, samples, rewards, models, online, hacking, term_samples)
    if config.pretraining is None and not config.stages:
        return main
    stages: list[Stage] = []
    growing: list[GrowingSampler] = []
    if config.pretraining is not None:
        beside = models if isinstance(config.pretraining.algorithm, ReconstructionConfig) else None
        warm = _stage(config, config.pretraining.algorithm, policy, pretraining_samples, None, beside)
        scale = config.pretraining.lr_scale
        stages.append(Stage(warm.source, warm.objective, config.pretraining.iterations, lr_scale=scale))
    built_stages = []
    for number, (chosen, inputs) in enumerate(zip(config.stages, stage_inputs, strict=True)):
        staged = config.staged(chosen)
        staged = staged.model_copy(update={"seed": fold_in(config.seed, number + 1)})
        learner = policy if models is None else models[chosen.train].policy
        iterations = chosen.iterations * config.turns(chosen)
        own = term_samples if staged.algorithm == config.algorithm else inputs.term_samples
        built = _stage(
            staged, staged.algorithm, learner, inputs.samples, inputs.rewards, models, iterations, hacking, own
        )
        begin = None
        if chosen.begin is not None and models is not None:
            begin = partial(models.copy, chosen.begin, chosen.train)
        built_stages.append(
            Stage(built.source, built.objective, chosen.iterations, chosen.train, chosen.lr_scale, begin)
        )
        growing += built.growing
    for number in range(config.rounds):
        turns = zip(config.stages, built_stages, strict=True)
        stages += [stage for chosen, stage in turns if not (chosen.once and number)]
    source = StagedSource([*stages, Stage(main.source, main.objective)])
    return TrainingSetup(source, StagedObjective(source), growing=(*growing, *main.growing))


def _stage(
    config: TrainConfig,
    algorithm: AlgorithmConfig,
    policy: Any,
    samples: Sequence[Sample],
    rewards: Rewards | None,
    models: NamedModels | None = None,
    iterations: int | None = None,  # in which it samples; None: it learns offline
    hacking: HackingGauge | None = None,
    term_samples: Mapping[int, Sequence[Sample]] | None = None,
) -> TrainingSetup:
    updates = config.training.iterations * config.training.epochs * config.training.updates
    objective = build_objective(algorithm, policy, config.sampling, rewards, models, updates)
    objective = with_learned_weights(objective, algorithm, policy)
    data, seed = config.data, config.seed
    prompts = build_prompts(data, samples, seed, iterations if algorithm.experience == "rollouts" else None, models)
    growing = (prompts,) if isinstance(prompts, GrowingSampler) else ()
    if algorithm.experience == "rollouts":
        if rewards is None:
            raise ValueError(f"{algorithm.name} trains on scored answers, and there are no rewards")
        if isinstance(algorithm, OnlineDPOConfig) and algorithm.writers is not None and models is not None:
            named = ModelWriters(models[algorithm.writers.chosen], models[algorithm.writers.rejected])
            written = ModelPairs(
                policy=policy,
                prompts=prompts,
                suite=rewards,
                writers=named,
                group_size=data.group_size,
                micro_batch=BatchPlan.of(config).micro_batch,
                seed=seed,
                margin=algorithm.margin,
                updates=config.training.updates,
                models=models.scorers,
            )
            return TrainingSetup(written, objective, growing=growing)
        lead = lead_of(algorithm)
        advantage = getattr(lead, "advantage", None) or AdvantageConfig()
        choose = build_row_choice(lead, policy.capabilities)
        overlap, cancellation = config.run.overlap, Cancellation()
        sampler = sampling_copy(policy) if overlap.is_on else answering(algorithm, policy, models)
        answerer: Any = sampler
        if getattr(lead, "samples_from", "policy") == "data":
            answerer = recorded_pictures(policy, samples, data.group_size)
        online = OnlineRollouts(
            policy=answerer,
            sampling_weights=cancellation.checked if overlap.is_on else objective.sampling_weights,
            prompts=prompts,
            suite=rewards,
            advantage_estimator=AdvantageEstimator(
                named_by_values(advantage, config.rewards, rewards),
                rewards.weights,
                build_constraints(config.rewards, rewards),
            ),
            group_size=data.group_size,
            micro_batch=BatchPlan.of(config).micro_batch,
            seed=seed,
            group_sampler=build_group_sampler(data, seed),
            replay=build_replay(data, seed),
            weighting=build_weighting(data),
            demonstrations=build_demonstrations(data, samples, seed),
            starts=None if data.starts is None else data.starts.rule(),
            turn_filter=build_turn_filter(data),
            token_budget=build_token_budget(data, seed),
            aligned=build_alignment(lead),
            history=build_history(advantage),
            keep_means=isinstance(lead, PolicyGradientConfig) and lead.ratio == "guard",
            horizon=() if config.environment is None else config.environment.horizon,
            keep_clean=choose is not None and uses_velocity_loss(policy.capabilities),
            rollout_metrics=getattr(sampler, "rollout_metrics", None),
            models={} if models is None else models.handles,
            hacking=hacking,
        )
        source: ExperienceSource = online
        if choose is not None:
            source = RowSelection(online, sampler, choose, online.micro_batch, config.training.updates)
        correction = build_importance_correction(lead, policy, _drift_bound(config))
        schedule = BehaviourSchedule(policy, overlap.lag, objective.sampling_weights)
        last = config.training.iterations
        if overlap.stream:
            streamed = StreamedRollouts(online, sampler, schedule, last, cancellation, correction)
            return TrainingSetup(streamed, objective, streamed, growing)
        lagged = None
        if overlap.lag:
            newest = NewestBehaviour(sampler) if overlap.interrupt else None
            source = lagged = LaggedRollouts(source, sampler, schedule, last, cancellation, newest)
        if isinstance(algorithm, PPOConfig) and models is not None:
            source = CriticAdvantages(source, models.critics[algorithm.critic], algorithm)
        if isinstance(lead, OREALConfig):
            judged = None if lead.critic is None or models is None else models.critics[lead.critic]
            source = OutcomeCredits(source, lead, judged)
        if correction is not None:  # after all that gives decisions new advantages, which its weights multiply
            source = CorrectedRollouts(source, correction)
        terms = algorithm.terms if isinstance(algorithm, MixConfig) else (algorithm,)
        if any(isinstance(each, ROVERConfig) for each in terms):
            source = MeanLogProbs(source, policy)
        if isinstance(algorithm, MixConfig) and (
            others := _imitated(config, algorithm, policy, samples, term_samples or {})
        ):
            source = MixedSource(source, others)
        if data.controller is not None:
            source = ControlledRollouts(source, online, data.controller, samples)
        return TrainingSetup(source, objective, lagged, growing)
    if isinstance(algorithm, ALoLConfig):
        if rewards is None:
            raise ValueError(f"{algorithm.name} trains on scored answers, and there are no rewards")
        handles = {} if models is None else models.handles
        return TrainingSetup(build_stored_answers(config, algorithm, policy, samples, rewards, handles), objective)
    return TrainingSetup(build_offline_source(config, algorithm, policy, samples, prompts), objective)


def samples_of_terms(
    algorithm: AlgorithmConfig, read: Callable[[str], Sequence[Sample]]
) -> dict[int, Sequence[Sample]]:
    """Return the samples of the terms of a mix with a data set beside the run's, by their numbers."""
    terms = algorithm.terms if isinstance(algorithm, MixConfig) else ()
    paths = {number: getattr(term, "path", None) for number, term in enumerate(terms)}
    return {number: read(path) for number, path in paths.items() if path is not None}


def _imitated(
    config: TrainConfig,
    algorithm: MixConfig,
    policy: Any,
    samples: Sequence[Sample],
    term_samples: Mapping[int, Sequence[Sample]],
) -> dict[int, tuple[str, ExperienceSource]]:
    """Return the sources of the terms that learn from demonstrations, by their numbers, with their names in metrics.

    Each draws prompts in another order, from the samples that have a demonstration: the term's, or else the run's.

    Raises:
        DataError: no sample has a demonstration.
    """
    found: dict[int, tuple[str, ExperienceSource]] = {}
    for number, (term, label) in enumerate(zip(algorithm.terms, algorithm.labels(), strict=True)):
        if term.experience != "rollouts":
            taught = [sample for sample in term_samples.get(number, samples) if demonstrations_of(sample)]
            if not taught:
                raise DataError(f"algorithm.terms.{number}: none of the samples has a 'demonstration' for {term.name}")
            prompts = PromptSampler(taught, config.data.groups, fold_in(config.seed, TERM_STREAM, number))
            found[number] = label, build_offline_source(config, term, policy, taught, prompts)
    return found


def build_row_choice(algorithm: AlgorithmConfig, capabilities: frozenset[Capability]) -> Choose | None:
    """Return the function that selects rows to train on; None: all rows stay in their rollouts."""
    if isinstance(algorithm, OnlineDPOConfig):
        if algorithm.pairing == "all":
            return EveryPair(algorithm.margin, split=not uses_velocity_loss(capabilities))
        return BestAndWorst(algorithm.margin)
    return (
        positive_advantage_rows
        if isinstance(algorithm, RejectionSFTConfig) and uses_velocity_loss(capabilities)
        else None
    )
