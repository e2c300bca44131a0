"""Rollouts and scores of all processes, in one order: each process makes its share, and every one knows the results.

A rollout that another process made is `remote`: it has all that statistics, advantages and the choice of rows need, but
no recording, so that only its owner replays it. With one process nothing is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.rewards.core.reward_io import RewardOutput, merge_outputs
from mmrl.rollout import Rollout
from mmrl.statistics.distances import thumbnail
from mmrl.trained_models import Critic

T = TypeVar("T")


def deal(
    groups: Sequence[Collection[int]],  # those that each call has rows of
    whole_groups: bool = False,
    first: int = 0,  # calls that were dealt before
    costs: Sequence[float] | None = None,  # the expected duration of each call, in any unit; None: all alike
) -> list[int]:
    """Return the rank that makes each of these calls: in turn, or with `costs` so that all last about as long.

    With `whole_groups`, calls that share a group, directly or through others, have the same rank. Costs do not change
    how many calls a process makes: the dearest one goes first, to the process with the least work so far.

    >>> deal([{0}], costs=[5.0])
    [0]
    """
    units = list(range(len(groups)))
    if whole_groups:
        for group in sorted({group for each in groups for group in each}):
            joined = {units[call] for call, each in enumerate(groups) if group in each}
            units = [min(joined) if unit in joined else unit for unit in units]
    work = dict.fromkeys(sorted(set(units)), 0.0)
    for unit, cost in zip(units, costs or [0.0] * len(units), strict=True):
        work[unit] += cost
    ranks = deal_evenly(list(work.values()), processes.size(), first)
    rank_of = dict(zip(work, ranks, strict=True))
    return [rank_of[unit] for unit in units]


def deal_evenly(costs: Sequence[float], count: int, first: int = 0) -> list[int]:
    """Return which of `count` processes does each piece of work; equal costs are dealt in turn from `first` on.

    Graham's rule of the longest first, with as many pieces for each process as if they were dealt in turn.

    >>> deal_evenly([1.0, 9.0, 2.0, 8.0], 2)
    [0, 0, 1, 1]
    >>> deal_evenly([1.0, 1.0, 1.0], 2, first=1)
    [1, 0, 1]
    """
    turns = [(first + turn) % count for turn in range(len(costs))]
    most = [turns.count(rank) for rank in range(count)]
    loads, done, ranks = [0.0] * count, [0] * count, [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: -costs[piece]):
        free = (rank for rank in range(count) if done[rank] < most[rank])
        ranks[piece] = rank = min(free, key=lambda rank: (loads[rank], done[rank], (rank - first) % count))
        loads[rank] += costs[piece]
        done[rank] += 1
    return ranks


def shared_rollouts(
    own: Mapping[int, Rollout],  # of this process, by number
    samples: Iterable[Sample],  # all that rollouts of any process may answer
) -> list[Rollout]:
    """Return the rollouts of all processes in the order of their numbers."""
    if processes.size() == 1:
        return [own[number] for number in sorted(own)]
    return _joined(own, processes.gather(_outlines(own)), samples)


def shared_answers(
    own: Mapping[int, Rollout],  # of this process, by number
    scores: RewardOutput,  # of all rows that this process made, those of earlier rollouts first
    samples: Iterable[Sample],
    keep_clean: bool = False,  # whether remote rollouts have their clean latents
    earlier: Sequence[Rollout] = (),  # of all processes
) -> tuple[list[Rollout], RewardOutput]:
    """Return the rollouts of all processes in the order of their numbers, and the scores of all rows of `earlier` ones
    and of these. One exchange."""
    if processes.size() == 1:
        return [own[number] for number in sorted(own)], scores
    known = [number for number, rollout in enumerate(earlier) if not rollout.remote]
    parts = processes.gather((_outlines(own, keep_clean), known, scores))
    rollouts = _joined(own, [outlines for outlines, _, _ in parts], samples)
    sizes = [rollout.rows for rollout in (*earlier, *rollouts)]
    merged = []
    for outlines, before, output in parts:
        made = {*before, *(len(earlier) + number for number in outlines)}
        merged.append((own_rows([(size, number in made) for number, size in enumerate(sizes)]), output))
    return rollouts, _merged(merged, sum(sizes))


def shared_scores(output: RewardOutput, rows: Sequence[int], count: int) -> RewardOutput:
    """Return the scores of all `count` rows; `output` has those of `rows`, which this process made, in that order."""
    return output if processes.size() == 1 else _merged(processes.gather((rows, output)), count)


def shared_rows(own: Sequence[T], rows: Sequence[int]) -> list[T]:
    """Return the values of all rows in order; `own` are those of `rows`, which this process made."""
    if processes.size() == 1:
        return list(own)
    parts = processes.gather(dict(zip(rows, own, strict=True)))
    found = {row: value for part in parts for row, value in part.items()}
    return [found[row] for row in sorted(found)]


def shared_values(critic: Critic, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """Return a critic's estimates [B, T] of all rollouts; each process asks its own critic about those that it made."""
    own = [number for number, rollout in enumerate(rollouts) if not rollout.remote]
    found = [critic.values(rollouts[number]) for number in own]
    return shared_rows(found if len(own) == len(rollouts) else [each.cpu() for each in found], own)


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


_Outlines = dict[int, tuple[list[str], Rollout]]
"""By number: the ids of the samples that a rollout answers, and the rest of what other processes need of it."""


def _outlines(own: Mapping[int, Rollout], keep_clean: bool = False) -> _Outlines:
    return {
        number: ([sample.id for sample in rollout.samples], _outline(rollout, keep_clean))
        for number, rollout in own.items()
    }


def _joined(own: Mapping[int, Rollout], parts: Sequence[_Outlines], samples: Iterable[Sample]) -> list[Rollout]:
    by_id = {sample.id: sample for sample in samples}
    found = {number: outline for part in parts for number, outline in part.items()}
    rollouts = []
    for number in sorted(found):
        ids, outline = found[number]
        rollouts.append(own.get(number) or replace(outline, samples=[by_id[id] for id in ids]))
    return rollouts


def _merged(parts: Sequence[tuple[Sequence[int], RewardOutput]], count: int) -> RewardOutput:
    """Return the scores of all rows from those of each process, which waited for one another."""
    merged = merge_outputs([(own, part) for own, part in parts if own], count)
    return replace(merged, seconds=max(part.seconds for _, part in parts))


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
        drawn=None if rollout.drawn is None else _outline(rollout.drawn, keep_clean),
        remote=True,
    )


def _small(media: Any) -> Any:
    """Return a text as it is, and the thumbnail of a picture or a video, which is what its diversity is measured on."""
    return media if isinstance(media, str) else thumbnail(media)
