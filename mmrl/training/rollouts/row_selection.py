"""The rows of online rollouts that something is learnt from, in micro-batches of their own.

Imitating the best of twelve answers, or comparing it with the worst, concerns one or two rows in twelve. They are taken
out of their rollouts and read again, texts by their tokens and pictures by their latents, so that no pass is spent on
the others, and a pair never lies in two micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.policy import Capability, LatentInitPolicy, Policy, Rollout, TargetText, TeacherForcingPolicy
from mmrl.training.experience import Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import uses_velocity_loss
from mmrl.training.run.timers import Phases

Rows = list[int]
Choose = Callable[[Tensor, Tensor], list[Rows]]
"""From advantages [R] (NaN: could not be scored) and groups [R] to units of rows that must stay together."""


@dataclass
class RowSelection:
    """What `choose` picks of a source's experience; all of it where it picks nothing."""

    source: ExperienceSource
    policy: Policy
    choose: Choose
    micro_batch: int  # rows of one rollout, at most
    updates: int = 1  # among which an iteration's micro-batches are shared

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Adds the metric `chosen_rows`."""
        found = self.source.collect(iteration, progress, phases)
        rollouts = [batch.rollout for batch in found.micro_batches]
        places = [(rollout, row) for rollout in rollouts for row in range(rollout.rows)]
        advantages = torch.cat([b.advantages.where(b.scored, torch.nan).cpu() for b in found.micro_batches])
        groups = torch.cat([rollout.group_index.cpu() for rollout in rollouts])
        units = self.choose(advantages, groups)
        metrics = found.metrics | {"chosen_rows": float(sum(map(len, units)))}
        if not units:
            return Experience(found.micro_batches, metrics)
        samples = [rollout.samples[row] for rollout, row in places]
        batches = []
        for rows in packed(units, samples, self.micro_batch, self.updates):
            with phases("rollout"), torch.no_grad():
                rollout = self._read([places[row] for row in rows])
            gained = advantages[rows]
            credit = gained.to(rollout.mask.device)[:, None].where(rollout.mask, 0.0)
            batches.append(MicroBatch(rollout, gained, torch.ones_like(gained, dtype=torch.bool), credit))
        return Experience(batches, metrics)

    def state_dict(self) -> dict[str, Any]:
        """The source's."""
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.source.load_state_dict(state)

    def _read(self, places: Sequence[tuple[Rollout, int]]) -> Rollout:
        """A rollout of these rows alone."""
        samples = [rollout.samples[row] for rollout, row in places]
        groups = [int(rollout.group_index[row]) for rollout, row in places]
        media = [rollout.media[row] for rollout, row in places]
        if uses_velocity_loss(self.policy.capabilities):
            drawer: LatentInitPolicy = self.policy  # type: ignore[assignment]  # `refuse_unreadable` has seen to it
            clean = [rollout.clean[row] for rollout, row in places if rollout.clean is not None]
            return drawer.rollout_from_latents(samples, groups, torch.stack(clean), media)
        writer: TeacherForcingPolicy = self.policy  # type: ignore[assignment]
        tokens = [None if rollout.token_ids is None else tuple(rollout.token_ids[row]) for rollout, row in places]
        given = [TargetText(*each) for each in zip(samples, media, groups, tokens, strict=True)]
        return writer.score_targets(given)


def can_be_read_again(capabilities: frozenset[Capability]) -> bool:
    """Whether rows of a rollout can be taken out of it."""
    return bool(capabilities & {Capability.TEACHER_FORCE, Capability.FROM_LATENTS})


def packed(units: Sequence[Rows], samples: Sequence[Sample], most: int, parts: int = 1) -> list[Rows]:
    """Units, in order, in packs of at most `most` rows, and in at least `parts` packs if there are as many units.

    A unit that is larger has a pack of its own. A sample with conditions shares its pack with no other sample.
    """
    total = sum(map(len, units))
    room = min(most, max(math.ceil(total / parts), 1))
    packs: list[Rows] = []
    for unit in units:
        last = packs[-1] if packs else []
        first, mine = samples[last[0]] if last else None, samples[unit[0]]
        alone = first is not None and first is not mine and bool(mine.conditions or first.conditions)
        if not last or alone or len(last) + len(unit) > room:
            packs.append(list(unit))
        else:
            last.extend(unit)
    return packs


def positive_advantage_rows(advantages: Tensor, groups: Tensor) -> list[Rows]:
    """Every row with a positive advantage, alone.

    >>> praised(torch.tensor([1.0, 0.0, float("nan")]), torch.tensor([0, 0, 0]))
    [[0]]
    """
    return [[row] for row in (advantages > 0).nonzero()[:, 0].tolist()]


@dataclass(frozen=True)
class BestAndWorst:
    """The best row of each group and the worst, in that order, if their advantages differ by more than `margin`."""

    margin: float = 0.0

    def __call__(self, advantages: Tensor, groups: Tensor) -> list[Rows]:
        units = []
        for rows in _by_group(advantages, groups):
            best, worst = (max(rows, key=lambda r: sign * advantages[r].item()) for sign in (1, -1))
            if advantages[best] - advantages[worst] > self.margin:
                units.append([best, worst])
        return units


@dataclass(frozen=True)
class EveryPair:
    """All rows of a group that differ from another by more than `margin`; or each such pair alone, better row first."""

    margin: float = 0.0
    split: bool = False  # into pairs; a row is then there as often as it is in one

    def __call__(self, advantages: Tensor, groups: Tensor) -> list[Rows]:
        units: list[Rows] = []
        for rows in _by_group(advantages, groups):
            pairs = [[a, b] for a in rows for b in rows if advantages[a] - advantages[b] > self.margin]
            if self.split:
                units += pairs
            elif pairs:
                units.append(sorted({row for pair in pairs for row in pair}))
        return units


def _by_group(advantages: Tensor, groups: Tensor) -> list[Rows]:
    """The scored rows of each group."""
    scored = advantages.isfinite()
    return [((groups == group) & scored).nonzero()[:, 0].tolist() for group in groups.unique().tolist()]
