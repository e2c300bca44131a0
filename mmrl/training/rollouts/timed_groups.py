"""Groups that are sampled for a given time: workers play one episode after another, and fast ones end more often.

An asynchronous trainer takes the episodes that have ended and drops or delays those in progress, so that an action is
learnt from the more often the less time it takes (arXiv:2509.01684). `TimedGroupSampler` samples in this way, by the
durations that an environment reports, so that a run does not depend on a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, RunError
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.collect import CollectedRollouts, Origin, ScoredRollouts


def episode_seconds(rollouts: Sequence[Rollout], key: str) -> Tensor:  # [R] float64
    """Return how long each episode took, as its environment reports it; NaN for an episode that is void.

    Raises:
        ConfigError: there is no environment, or its outcome has no number of this name above 0.
    """
    found: list[float] = []
    for rollout in rollouts:
        if rollout.episodes is None:
            raise ConfigError(f"{key}: only episodes have a duration: set environment, or leave durations out")
        for episode in rollout.episodes:
            value = episode.outcome.get(key)
            if episode.void is not None:
                found.append(torch.nan)
            elif isinstance(value, int | float) and value > 0:
                found.append(float(value))
            else:
                raise ConfigError(
                    f"{key}: the environment reports {value!r} as the duration of an episode; its outcome needs a "
                    f"number of seconds above 0 of this name. It has {', '.join(episode.outcome)}"
                )
    return torch.tensor(found, dtype=torch.float64)


@dataclass(frozen=True)
class TimedGroupSampler:
    """`workers` workers for each prompt, which play one episode after another until the window closes.

    Episodes that have not ended by then are left out. Workers wait for nothing but their own episodes.
    """

    workers: int
    window: float  # seconds, as the environment counts them
    key: str  # of the duration in the outcome of an episode
    max_rounds: int  # episodes of a worker, at most

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return a request for each prompt whose workers have time left, for as many episodes as there are of these."""
        if scored is None:
            return [RolloutRequest(sample, self.workers, group) for group, sample in enumerate(prompts.next())]
        if len(scored.round_sizes) >= self.max_rounds:
            return []
        first: dict[int, Sample] = {}
        for group, sample in zip(scored.group_index.tolist(), scored.samples, strict=True):
            first.setdefault(group, sample)
        clocks = self._clocks(scored)[1]
        free = {group: sum(clock < self.window for clock in clocks[group]) for group in first}
        return [RolloutRequest(first[group], number, group) for group, number in free.items() if number]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select the episodes that ended within the window.

        Metrics: `draws/rounds`, `draws/rows`, `draws/unfinished_rows`, and `draws/seconds` of an episode that ended.

        Raises:
            RunError: none ended.
        """
        ends = self._clocks(scored)[0]
        ended = ends <= self.window
        if not ended.any():
            raise RunError(
                f"data.group_sampling.window: of {len(ended)} episodes none ended within {self.window:g} s, the first "
                f"after {float(ends.min()):g} s: set a longer window"
            )
        return CollectedRollouts(
            scored,
            in_baseline=ended,
            trained=ended,
            on_policy=scored.is_from(Origin.POLICY) & (torch.arange(len(ended)) < scored.round_sizes[0]),
            metrics={
                "draws/rounds": float(len(scored.round_sizes)),
                "draws/rows": float(len(ended)),
                "draws/unfinished_rows": float((~ended).sum()),
                "draws/seconds": float(episode_seconds(scored.rollouts, self.key)[ended].mean()),
            },
        )

    def _clocks(self, scored: ScoredRollouts) -> tuple[Tensor, dict[int, list[float]]]:
        """Return the time [R] at which each episode ended, and that of each worker's last one, by group.

        A void episode holds its worker up for good.
        """
        seconds = episode_seconds(scored.rollouts, self.key).nan_to_num(torch.inf).tolist()
        groups = scored.group_index.tolist()
        clocks: dict[int, list[float]] = {group: [0.0] * self.workers for group in groups}
        ends: list[float] = []
        for size in scored.round_sizes:
            free = {group: [n for n, clock in enumerate(own) if clock < self.window] for group, own in clocks.items()}
            for row in range(len(ends), len(ends) + size):
                worker = free[groups[row]].pop(0)
                clocks[groups[row]][worker] += seconds[row]
                ends.append(clocks[groups[row]][worker])
        return torch.tensor(ends, dtype=torch.float64), clocks
