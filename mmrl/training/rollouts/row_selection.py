"""Select the rollout rows to train on (best of n, pairs of best and worst) and put them into new micro-batches.

Imitating the best of twelve answers, or comparing it with the worst, needs one or two rows in twelve. The selected rows
become new rollouts, texts from their tokens and images from their latents, so that no pass is spent on the others, and
a pair is never split over two micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.policy import LatentInitPolicy, Policy, TeacherForcingPolicy
from mmrl.rollout import Rollout
from mmrl.rollout_request import TargetText
from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import uses_velocity_loss
from mmrl.training.rollouts.exchange import shared_rollouts
from mmrl.training.run.timers import Phases

Rows = list[int]
Choose = Callable[[Tensor, Tensor], list[Rows]]
"""(advantages [R], NaN = could not be scored; groups [R]) -> units of rows that must stay in one micro-batch."""


@dataclass
class RowSelection(DerivedSource):
    """A source that returns the rows that `choose` selects; where it selects none, all rows, none of which is learnt.

    Raises:
        ConfigError: the policy writes trajectories of several turns.
    """

    source: ExperienceSource
    policy: Policy
    choose: Choose
    micro_batch: int  # rows of one rollout, at most
    updates: int = 1  # of an iteration; there are at least as many micro-batches, if possible

    def __post_init__(self) -> None:
        if getattr(self.policy, "environment", None) is not None:
            raise ConfigError(
                "algorithm: it puts the rows of an iteration into new micro-batches, which rows of several turns "
                "cannot be: choose grpo, or leave the environment out"
            )

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the selected rows. Adds the metric `chosen_rows`."""
        found = self.source.collect(iteration, progress, phases)
        rollouts = [batch.rollout for batch in found.micro_batches]
        places = [(rollout, row) for rollout in rollouts for row in range(rollout.rows)]
        advantages = torch.cat([b.advantages.where(b.scored, torch.nan).cpu() for b in found.micro_batches])
        groups = torch.cat([rollout.group_index.cpu() for rollout in rollouts])
        units = self.choose(advantages, groups)
        metrics = found.metrics | {"chosen_rows": float(sum(map(len, units)))}
        if not units:  # equal answers are no pair: they stay, so that an update is made, and are not learnt from
            unlearnt = [replace(each, scored=torch.zeros_like(each.scored)) for each in found.micro_batches]
            return Experience(unlearnt, metrics)
        samples = [rollout.samples[row] for rollout, row in places]
        packs = pack_units(units, samples, self.micro_batch, self.updates)
        own: dict[int, Rollout] = {}
        for number, rows in enumerate(packs):
            if processes.owns(number):
                with phases("rollout"), torch.no_grad():
                    own[number] = self._read([places[row] for row in rows])
        rollouts = shared_rollouts(own, samples)
        batches = [MicroBatch.of_rows(rollout, advantages[pack]) for rollout, pack in zip(rollouts, packs, strict=True)]
        return Experience(batches, metrics)

    def _read(self, places: Sequence[tuple[Rollout, int]]) -> Rollout:
        """Return a new rollout of these rows."""
        samples = [rollout.samples[row] for rollout, row in places]
        groups = [int(rollout.group_index[row]) for rollout, row in places]
        media = [rollout.media[row] for rollout, row in places]
        if uses_velocity_loss(self.policy.capabilities):
            image_policy: LatentInitPolicy = self.policy  # type: ignore[assignment]  # `check_compatible` checks it
            device = next(iter(self.policy.parameters_to_train().values())).device  # remote latents are on the CPU
            clean = [rollout.clean[row].to(device) for rollout, row in places if rollout.clean is not None]
            return image_policy.rollout_from_latents(samples, groups, torch.stack(clean), media)
        text_policy: TeacherForcingPolicy = self.policy  # type: ignore[assignment]
        tokens = [None if rollout.token_ids is None else tuple(rollout.token_ids[row]) for rollout, row in places]
        starts = [None if rollout.starts is None else rollout.starts[row] for rollout, row in places]
        rows = zip(samples, media, groups, tokens, starts, strict=True)
        targets = [TargetText(sample, text, group, ids, start=start) for sample, text, group, ids, start in rows]
        return text_policy.score_targets(targets)


def pack_units(units: Sequence[Rows], samples: Sequence[Sample], most: int, parts: int = 1) -> list[Rows]:
    """Pack units, in order, into packs of at most `most` rows, and at least `parts` packs if there are enough units.

    A larger unit is a pack by itself. A sample with conditions shares its pack with no other sample.
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
    """Return a unit for each row with a positive advantage.

    >>> positive_advantage_rows(torch.tensor([1.0, 0.0, float("nan")]), torch.tensor([0, 0, 0]))
    [[0]]
    """
    return [[row] for row in (advantages > 0).nonzero()[:, 0].tolist()]


@dataclass(frozen=True)
class BestAndWorst:
    """A choice of the best and the worst row of each group, if their advantages differ by more than `margin`."""

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
    """A choice of all rows of a group that differ from another by more than `margin`.

    A unit is such a group of rows; with `split`, each pair is a unit, better row first.
    """

    margin: float = 0.0
    split: bool = False  # a row then appears once for each of its pairs

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
    """Return the scored rows of each group."""
    scored = advantages.isfinite()
    return [((groups == group) & scored).nonzero()[:, 0].tolist() for group in groups.unique().tolist()]
