"""Metrics of an iteration: of rewards by name and source, failures and lengths, and of the turns of its episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmrl.algorithms.groups import group_spread
from mmrl.rewards.core.reward_io import TOTAL, RewardOutput
from mmrl.rewards.core.suite import Scorer
from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout


def reward_metrics(
    output: RewardOutput,  # of R rows
    suite: Scorer,
    sources: Sequence[str],  # R
    group_index: Tensor,  # [R] int
    lengths: Sequence[int] | None = None,  # R, in tokens
) -> dict[str, float]:
    """Return means by reward, counts of statuses other than ok, and the share of groups without variance.

    The mean total, the share of valid rows and the share of groups without variance are repeated by source.
    """
    metrics = {f"reward/{name}": _mean(values) for name, values in output.values.items()}
    total = output.values[TOTAL]
    metrics["reward/total_std"] = float(np.nanstd(total)) if np.isfinite(total).any() else float("nan")
    for name, by_status in suite.counts(output).items():
        for status, count in by_status.items():
            if status != "ok":
                metrics[f"status/{name}/{status}"] = float(count)
    for name, by_kind in suite.failures(output).items():
        for kind, count in by_kind.items():
            metrics[f"failure/{name}/{kind}"] = float(count)
    flat = group_spread(torch.from_numpy(total), group_index).numpy() == 0
    groups, origin = group_index.numpy(), np.array(sources)
    metrics["zero_variance_share"] = _share_of_groups(flat, groups)
    for source in sorted(set(sources)):
        rows = origin == source  # of whole groups: their answers are to one sample
        metrics[f"reward_by_source/{source}"] = _mean(total[rows])
        metrics[f"valid_share_by_source/{source}"] = float(np.isfinite(total[rows]).mean())
        metrics[f"zero_variance_share_by_source/{source}"] = _share_of_groups(flat[rows], groups[rows])
    return metrics | ({} if lengths is None else length_metrics(lengths, sources))


def length_metrics(lengths: Sequence[int], sources: Sequence[str]) -> dict[str, float]:
    """Return the number of tokens of all answers, and their mean over answers, also by source."""
    by_source = {
        f"length_by_source/{source}": float(
            np.mean([n for n, each in zip(lengths, sources, strict=True) if each == source])
        )
        for source in sorted(set(sources))
    }
    return {"tokens": float(sum(lengths)), "length": float(np.mean(lengths))} | by_source


def turn_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return metrics of all rows that an environment answered; {} if none did.

    `turns/count` is the mean number of turns, `turns/cut_off` and `turns/context` are the numbers of episodes that
    ended in these ways, `turns/void` and `turns/void/KIND` those that broke down. `turns/reward/NAME` is the mean sum
    of a turn reward over an episode, and `turns/info/NAME` the mean of a measured value over the turns that have it.
    Void episodes count in the first four alone.
    """
    episodes = [episode for rollout in rollouts for episode in rollout.episodes or ()]
    if not episodes:
        return {}
    metrics = {"turns/count": _mean_of([len(each.texts) for each in episodes])}
    for end in (EndOfEpisode.CUT_OFF, EndOfEpisode.CONTEXT):
        metrics[f"turns/{end}"] = float(sum(each.end is end for each in episodes))
    voids = [each.void for each in episodes if each.void is not None]
    metrics["turns/void"] = float(len(voids))
    metrics |= {f"turns/void/{kind}": float(voids.count(kind)) for kind in sorted(set(voids))}
    return metrics | _measured([each for each in episodes if each.void is None])


def _measured(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    names = sorted({event.name for each in episodes for event in each.events})
    sums = {
        f"turns/reward/{name}": _mean_of([sum(e.value for e in each.events if e.name == name) for each in episodes])
        for name in names
    }
    info: dict[str, list[float]] = defaultdict(list)
    for each in episodes:
        for turn in each.info:
            for name, value in turn.items():
                info[name].append(float(value))
    return sums | {f"turns/info/{name}": _mean_of(values) for name, values in sorted(info.items())}


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _share_of_groups(flat: NDArray[np.bool_], groups: NDArray[np.int64]) -> float:
    """Return the share of the groups whose rows are `flat`."""
    return len(np.unique(groups[flat])) / len(np.unique(groups))


def _mean(values: NDArray[np.float32]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean()) if scored.size else float("nan")
