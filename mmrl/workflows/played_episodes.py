"""Episodes that the policy of a configuration plays before any training, for workflows that learn from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from mmrl.build.policies import build_policy, prepare_samples
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.rollout import EpisodeRecord
from mmrl.rollout_request import batch_requests
from mmrl.seeds import fold_in

Progress: TypeAlias = Callable[[int, int], None]
"""Is called with the number of calls of the model that are done, and their number."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


def played_episodes(
    config: TrainConfig, samples: Sequence[Sample], progress: Progress = no_progress
) -> Iterator[tuple[Sample, EpisodeRecord]]:
    """Yield `data.group_size` episodes of each sample, without those that are void.

    The same configuration gives the same episodes. The samples that are yielded have the instructions of their tasks.

    Raises:
        ConfigError, DataError: the policy cannot be built, or cannot take a sample.
    """
    torch.manual_seed(config.seed)
    policy = build_policy(config.policy, config.sampling, config.media, config.environment)
    prepared = prepare_samples(policy, config.policy, config.answers, config.sampling, samples)
    calls = batch_requests(prepared, config.data.group_size, BatchPlan.of(config).micro_batch)
    for number, call in enumerate(calls):
        rollout = policy.rollout(call, fold_in(config.seed, number))
        for sample, record in zip(rollout.samples, rollout.episodes or [], strict=True):
            if record.void is None:
                yield sample, record
        progress(number + 1, len(calls))
