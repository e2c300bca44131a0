"""Rollouts and scores of all processes, in one order: each process makes its share, and every one knows the results.

A rollout that another process made is `remote`: it has all that statistics, advantages and the choice of rows need, but
no recording, so that only its owner replays it. With one process nothing is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.policy import Rollout
from mmrl.rewards.core.reward_io import RewardOutput, merge_outputs
from mmrl.statistics.distances import thumbnail

T = TypeVar("T")


def deal(groups: Sequence[Collection[int]], whole_groups: bool = False, first: int = 0) -> list[int]:
    """Return the rank that makes each of these calls, in turn; `groups` are those that a call has rows of.

    With `whole_groups`, calls that share a group, directly or through others, have the same rank. `first` is the number
    of calls that were dealt before.
    """
    units = list(range(len(groups)))
    if whole_groups:
        for group in sorted({group for each in groups for group in each}):
            joined = {units[call] for call, each in enumerate(groups) if group in each}
            units = [min(joined) if unit in joined else unit for unit in units]
    turns = {unit: turn for turn, unit in enumerate(sorted(set(units)), start=first)}
    return [turns[unit] % processes.size() for unit in units]


def shared_rollouts(
    own: Mapping[int, Rollout],  # of this process, by number
    samples: Iterable[Sample],  # all that rollouts of any process may answer
    keep_clean: bool = False,  # whether remote rollouts have their clean latents
) -> list[Rollout]:
    """Return the rollouts of all processes in the order of their numbers."""
    if processes.size() == 1:
        return [own[number] for number in sorted(own)]
    by_id = {sample.id: sample for sample in samples}
    outlines = {
        number: ([sample.id for sample in rollout.samples], _outline(rollout, keep_clean))
        for number, rollout in own.items()
    }
    found = {number: outline for part in processes.gather(outlines) for number, outline in part.items()}
    rollouts = []
    for number in sorted(found):
        ids, outline = found[number]
        rollouts.append(own.get(number) or replace(outline, samples=[by_id[id] for id in ids]))
    return rollouts


def shared_scores(output: RewardOutput, rows: Sequence[int], count: int) -> RewardOutput:
    """Return the scores of all `count` rows; `output` has those of `rows`, which this process made, in that order."""
    if processes.size() == 1:
        return output
    parts = processes.gather((rows, output))
    merged = merge_outputs([(own, part) for own, part in parts if own], count)
    return replace(merged, seconds=max(part.seconds for _, part in parts))


def shared_rows(own: Sequence[T], rows: Sequence[int]) -> list[T]:
    """Return the values of all rows in order; `own` are those of `rows`, which this process made."""
    if processes.size() == 1:
        return list(own)
    parts = processes.gather(dict(zip(rows, own, strict=True)))
    found = {row: value for part in parts for row, value in part.items()}
    return [found[row] for row in sorted(found)]


def shared_media(rollouts: Sequence[Rollout], rows: Sequence[int]) -> dict[int, Any]:
    """Return the media of these rows, whole, although other processes know the pictures of a rollout as thumbnails."""
    places = [(rollout, row) for rollout in rollouts for row in range(rollout.rows)]
    own = {}
    for row in rows:
        rollout, place = places[row]
        if not rollout.remote:
            own[row] = rollout.media[place]
    return {row: media for part in processes.gather(own) for row, media in part.items()}


def own_rows(calls: Sequence[tuple[int, bool]]) -> list[int]:
    """Return the numbers of this process's rows; each call has a size, and True where this process made it.

    >>> own_rows([(2, True), (3, False), (1, True)])
    [0, 1, 5]
    """
    ends = accumulate(size for size, _ in calls)
    return [row for end, (size, own) in zip(ends, calls, strict=True) if own for row in range(end - size, end)]


def _outline(rollout: Rollout, keep_clean: bool) -> Rollout:
    """Return what other processes need of a rollout, on the CPU, without its samples."""
    clean = rollout.clean if keep_clean else None
    episodes = rollout.episodes
    return replace(
        rollout,
        samples=[],
        group_index=rollout.group_index.cpu(),
        log_probs=rollout.log_probs.cpu(),
        mask=rollout.mask.cpu(),
        channel=rollout.channel.cpu(),
        media=[_small(media) for media in rollout.media],
        clean=None if clean is None else clean.cpu(),
        recording=None,
        means=None,
        episodes=None if episodes is None else [replace(each, observations=()) for each in episodes],
        branches=None if rollout.branches is None else rollout.branches.cpu(),
        versions=None if rollout.versions is None else rollout.versions.cpu(),
        remote=True,
    )


def _small(media: Any) -> Any:
    """Return a text as it is, and the thumbnail of a picture or a video, which is what its diversity is measured on."""
    return media if isinstance(media, str) else thumbnail(media)
