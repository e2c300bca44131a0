"""Samplers that cannot do their work together, or with the rest of a run: said before any model is loaded."""

from __future__ import annotations

from mmrl.config.algorithm import PolicyGradientConfig
from mmrl.config.data import (
    AdaptiveGroupSamplingConfig,
    DataConfig,
    DynamicGroupSamplingConfig,
    FixedGroupSamplingConfig,
    SelectiveReplayConfig,
    ShuffledPromptsConfig,
    SuccessReplayConfig,
)
from mmrl.config.train import TrainConfig
from mmrl.policy import Capability


def sampling_errors(config: TrainConfig, capabilities: frozenset[Capability]) -> list[str]:
    """One line for everything that cannot work, with a policy of these powers; empty if all of it can."""
    data, algorithm = config.data, config.algorithm
    found = [*_of_powers(data, capabilities), *_of_draws(data)]
    if algorithm.experience != "rollouts":
        found += [
            (
                set_,
                f"data.{key}: {algorithm.name} learns from {algorithm.experience} in the data set and draws no answers "
                "of its own: leave it out",
            )
            for key, set_ in _set_for_rollouts(data)
        ]
    if isinstance(algorithm, PolicyGradientConfig) and algorithm.advantage.name == "reinforce_pp":
        found.append(
            (
                isinstance(data.group_sampling, DynamicGroupSamplingConfig),
                "data.group_sampling: dynamic drops groups of equal rewards, but advantages relative to the whole "
                "batch (reinforce_pp) learn from those too: choose an advantage relative to groups, or leave it out",
            )
        )
    return [line for cannot_work, line in found if cannot_work]


def _of_powers(data: DataConfig, capabilities: frozenset[Capability]) -> list[tuple[bool, str]]:
    reads = Capability.TEACHER_FORCE in capabilities
    return [
        (
            part is not None and not reads,
            f"data.{key}: the policy cannot read what it did not just draw (capability teacher_force), as policies "
            "that write texts can: leave it out",
        )
        for key, part in (("replay", data.replay), ("demonstrations", data.demonstrations))
    ]


def _of_draws(data: DataConfig) -> list[tuple[bool, str]]:
    draws, replay = data.group_sampling, data.replay
    dynamic = isinstance(draws, DynamicGroupSamplingConfig)
    found = [
        (
            dynamic and isinstance(replay, SuccessReplayConfig),
            "data.replay: success mends groups that failed as a whole, which data.group_sampling dynamic drops before: "
            "choose one of them, or the replay selective",
        ),
        (
            isinstance(replay, SelectiveReplayConfig) and replay.capacity < data.group_size,
            f"data.replay.capacity: {getattr(replay, 'capacity', 0)} answers do not fill the places of a single group "
            f"of {data.group_size}",
        ),
    ]
    if isinstance(draws, AdaptiveGroupSamplingConfig):
        half = data.group_size // 2
        wanted = (half if draws.positives is None else draws.positives) + (
            half if draws.negatives is None else draws.negatives
        )
        most = draws.max_rounds * (draws.per_round or data.group_size)
        found.append(
            (
                wanted > most,
                f"data.group_sampling: {draws.max_rounds} rounds draw at most {most} answers of a prompt, fewer than "
                f"the {wanted} good and bad ones that are waited for",
            )
        )
    return found


def _set_for_rollouts(data: DataConfig) -> list[tuple[str, bool]]:
    """The keys that say how answers are drawn, and whether they say something."""
    return [
        ("group_sampling", not isinstance(data.group_sampling, FixedGroupSamplingConfig)),
        ("prompts", not isinstance(data.prompts, ShuffledPromptsConfig)),
        ("replay", data.replay is not None),
        ("weighting", data.weighting is not None),
        ("demonstrations", data.demonstrations is not None),
    ]
