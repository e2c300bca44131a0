"""Metrics of the episodes of an iteration: how many turns, how they ended, what the environment measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout


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
    metrics = {"turns/count": _mean([len(each.texts) for each in episodes])}
    for end in (EndOfEpisode.CUT_OFF, EndOfEpisode.CONTEXT):
        metrics[f"turns/{end}"] = float(sum(each.end is end for each in episodes))
    voids = [each.void for each in episodes if each.void is not None]
    metrics["turns/void"] = float(len(voids))
    metrics |= {f"turns/void/{kind}": float(voids.count(kind)) for kind in sorted(set(voids))}
    return metrics | _measured([each for each in episodes if each.void is None])


def _measured(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    names = sorted({event.name for each in episodes for event in each.events})
    sums = {
        f"turns/reward/{name}": _mean([sum(e.value for e in each.events if e.name == name) for each in episodes])
        for name in names
    }
    info: dict[str, list[float]] = defaultdict(list)
    for each in episodes:
        for turn in each.info:
            for name, value in turn.items():
                info[name].append(float(value))
    return sums | {f"turns/info/{name}": _mean(values) for name, values in sorted(info.items())}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
