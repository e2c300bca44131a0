"""Validation of `data`: group sampling, replay and demonstrations that cannot work together or with the algorithm."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mmrl.config.data import (
    AdaptiveGroupSamplingConfig,
    DynamicGroupSamplingConfig,
    FixedGroupSamplingConfig,
    SelectiveReplayConfig,
    ShuffledPromptsConfig,
    SuccessReplayConfig,
)
from mmrl.config.train import TrainConfig


def data_errors(config: TrainConfig, capabilities: Collection[str] | None = None) -> Iterator[str]:
    """Yield one message for each problem; with the policy's `capabilities`, also for data that it cannot learn from."""
    data, algorithm = config.data, config.algorithm
    if capabilities is not None and "teacher_force" not in capabilities:
        for key, part in (("replay", data.replay), ("demonstrations", data.demonstrations)):
            if part is not None:
                yield (
                    f"data.{key}: the policy cannot read what it did not just sample (capability teacher_force), as "
                    "policies that write texts can: leave it out"
                )
    yield from _group_sampling_errors(config)
    if algorithm.experience == "rollouts":
        return
    for key, is_set in (
        ("group_sampling", not isinstance(data.group_sampling, FixedGroupSamplingConfig)),
        ("prompts", not isinstance(data.prompts, ShuffledPromptsConfig)),
        ("replay", data.replay is not None),
        ("weighting", data.weighting is not None),
        ("demonstrations", data.demonstrations is not None),
    ):
        if is_set:
            yield (
                f"data.{key}: {algorithm.name} learns from {algorithm.experience} in the data set and samples no "
                "answers: leave it out"
            )


def _group_sampling_errors(config: TrainConfig) -> Iterator[str]:
    data = config.data
    sampling, replay = data.group_sampling, data.replay
    if isinstance(sampling, DynamicGroupSamplingConfig) and isinstance(replay, SuccessReplayConfig):
        yield (
            "data.replay: success mends groups that failed as a whole, which data.group_sampling dynamic drops before: "
            "choose one of them, or the replay selective"
        )
    if isinstance(replay, SelectiveReplayConfig) and replay.capacity < data.group_size:
        yield (
            f"data.replay.capacity: {replay.capacity} answers do not fill the places of a single group of "
            f"{data.group_size}"
        )
    if isinstance(sampling, AdaptiveGroupSamplingConfig):
        half = data.group_size // 2
        wanted = (half if sampling.positives is None else sampling.positives) + (
            half if sampling.negatives is None else sampling.negatives
        )
        most = sampling.max_rounds * (sampling.per_round or data.group_size)
        if wanted > most:
            yield (
                f"data.group_sampling: {sampling.max_rounds} rounds sample at most {most} answers of a prompt, fewer "
                f"than the {wanted} good and bad ones that are waited for"
            )
