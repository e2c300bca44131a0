"""Build what `data` chooses: the prompts of a batch, the answers to each, and what is replayed or mixed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from mmrl.algorithms.aligned_groups import aligned_group_credit
from mmrl.config.algorithms.aligned_groups import GRAOConfig
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.data import (
    AdaptiveGroupSamplingConfig,
    AngleConcentrationPromptsConfig,
    DataConfig,
    DynamicGroupSamplingConfig,
    HardestPromptsConfig,
    MixturePromptsConfig,
    RecomposedReplayConfig,
    SelectiveReplayConfig,
    SpreadGroupSamplingConfig,
    StagedPromptsConfig,
    SuccessReplayConfig,
    TimedGroupSamplingConfig,
    ValuedPromptsConfig,
    VarianceAwarePromptsConfig,
)
from mmrl.config.growing import GrowingPromptsConfig
from mmrl.config.written_prompts import WrittenPromptsConfig
from mmrl.data.angle_prompts import AngleSampler
from mmrl.data.growing_prompts import GrowingSampler
from mmrl.data.hardest_prompts import HardestSampler
from mmrl.data.mixture_prompts import MixtureSampler
from mmrl.data.prompts import PromptSampler, PromptSource, VarianceAwareSampler
from mmrl.data.sample import Sample
from mmrl.data.staged_prompts import StagedSampler
from mmrl.data.valued_prompts import ValuedSampler
from mmrl.data.written_prompts import WrittenSampler
from mmrl.errors import DataError
from mmrl.training.rollouts.advantage_estimator import DifficultyWeighting
from mmrl.training.rollouts.collect import FixedGroupSampler, GroupSampler
from mmrl.training.rollouts.demonstrations import MixedDemonstrations, demonstrations_of
from mmrl.training.rollouts.group_sampling import AdaptiveGroupSampler, DynamicGroupSampler, SpreadGroupSampler
from mmrl.training.rollouts.recomposed_batches import RecomposedReplay
from mmrl.training.rollouts.replay_buffer import SelectiveReplay, SuccessReplay
from mmrl.training.rollouts.timed_groups import TimedGroupSampler
from mmrl.training.rollouts.token_budget import TokenBudget
from mmrl.training.rollouts.turn_filter import TurnFilter
from mmrl.training.run_models import NamedModels


def build_prompts(
    data: DataConfig,
    samples: Sequence[Sample],
    seed: int,
    iterations: int | None = None,
    models: NamedModels | None = None,
) -> PromptSource:
    """Build `data.prompts`.

    `iterations` are those that stages share, None for a stage that learns offline; `models` may write prompts.
    """
    chosen = data.prompts
    if isinstance(chosen, WrittenPromptsConfig) and models is not None:
        painter, reader = models.painters.get(chosen.by), chosen.reader.reader()
        write = models.scorers[chosen.by].answers if painter is None else painter.pictures
        return WrittenSampler(samples, data.groups, seed, write, reader, tries=chosen.tries)
    if isinstance(chosen, StagedPromptsConfig) and iterations is not None:
        return StagedSampler(samples, data.groups, seed, iterations, chosen.shares)
    if isinstance(chosen, HardestPromptsConfig):
        return HardestSampler(samples, data.groups, seed, keep=chosen.keep)
    if isinstance(chosen, MixturePromptsConfig):
        return MixtureSampler(samples, data.groups, seed, weights=chosen.weights)
    if isinstance(chosen, AngleConcentrationPromptsConfig):
        return AngleSampler(samples, data.groups, seed, **chosen.model_dump(exclude={"name"}))
    if isinstance(chosen, GrowingPromptsConfig) and iterations is not None:
        settings = chosen.model_dump(exclude={"name", "proposer"})
        return GrowingSampler(samples, data.groups, seed, chosen.proposer.proposer(), **settings)
    if isinstance(chosen, ValuedPromptsConfig):
        return ValuedSampler(samples, data.groups, seed, **chosen.model_dump(exclude={"name"}))
    if isinstance(chosen, VarianceAwarePromptsConfig):
        return VarianceAwareSampler(samples, data.groups, seed, **chosen.model_dump(exclude={"name"}))
    return PromptSampler(samples, data.groups, seed)


def build_group_sampler(data: DataConfig, seed: int) -> GroupSampler:
    """Build `data.group_sampling`."""
    chosen, half = data.group_sampling, data.group_size // 2
    if isinstance(chosen, DynamicGroupSamplingConfig):
        return DynamicGroupSampler(data.groups, data.group_size, chosen.max_rounds)
    if isinstance(chosen, SpreadGroupSamplingConfig):
        return SpreadGroupSampler(data.group_size, chosen.below)
    if isinstance(chosen, AdaptiveGroupSamplingConfig):
        return AdaptiveGroupSampler(
            group_size=data.group_size,
            max_rounds=chosen.max_rounds,
            per_round=chosen.per_round or data.group_size,
            success=chosen.success,
            positives=half if chosen.positives is None else chosen.positives,
            negatives=half if chosen.negatives is None else chosen.negatives,
            seed=seed,
        )
    if isinstance(chosen, TimedGroupSamplingConfig):
        return TimedGroupSampler(data.group_size, chosen.window, chosen.key, chosen.max_rounds)
    return FixedGroupSampler(data.group_size)


def build_replay(data: DataConfig, seed: int) -> SelectiveReplay | SuccessReplay | RecomposedReplay | None:
    """Build `data.replay`; None: nothing is replayed."""
    chosen = data.replay
    if isinstance(chosen, SelectiveReplayConfig):
        return SelectiveReplay(chosen.capacity, chosen.alpha, seed)
    if isinstance(chosen, SuccessReplayConfig):
        return SuccessReplay(chosen.success, chosen.per_prompt, seed)
    if isinstance(chosen, RecomposedReplayConfig):
        return RecomposedReplay(chosen.capacity, chosen.share, chosen.success, chosen.compensation, seed)
    return None


def build_weighting(data: DataConfig) -> DifficultyWeighting | None:
    """Build `data.weighting`; None: every group has weight 1."""
    chosen = data.weighting
    return None if chosen is None else DifficultyWeighting(chosen.stages, chosen.success)


def build_turn_filter(data: DataConfig) -> TurnFilter | None:
    """Build `data.turn_filter`; None: no episode is left out for a turn."""
    chosen = data.turn_filter
    return None if chosen is None else TurnFilter(chosen.below, chosen.above, chosen.cut_off)


def build_token_budget(data: DataConfig, seed: int) -> TokenBudget | None:
    """Build `data.token_budget`; None: all answers are learnt from."""
    return None if data.token_budget is None else TokenBudget(data.token_budget, seed)


def build_demonstrations(data: DataConfig, samples: Sequence[Sample], seed: int) -> MixedDemonstrations | None:
    """Build `data.demonstrations`; None: groups consist of the policy's own answers.

    Raises:
        DataError: no sample has a demonstration.
    """
    chosen = data.demonstrations
    if chosen is None:
        return None
    if not any(map(demonstrations_of, samples)):
        raise DataError("data.demonstrations: none of the samples has a 'demonstration' to mix in")
    return MixedDemonstrations(chosen.share, chosen.shaping, seed)


def build_alignment(algorithm: AlgorithmConfig) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """Return the function of advantages, groups and demonstrated rows that is GRAO's; None: advantages stay."""
    if not isinstance(algorithm, GRAOConfig):
        return None
    return partial(aligned_group_credit, imitation=algorithm.imitation, alignment=algorithm.alignment)
