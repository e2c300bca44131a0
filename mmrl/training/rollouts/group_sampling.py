"""How many answers an iteration draws, and which of them count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.groups import group_spread
from mmrl.checks import check_shapes
from mmrl.data.prompts import PromptSource
from mmrl.policy import RolloutRequest
from mmrl.training.rollouts.collect import Origin, RolloutCollector, ScoredRollouts


@dataclass(frozen=True)
class CollectedRollouts:
    """What an iteration has drawn, R rows, and what they are for."""

    scored: ScoredRollouts
    credited: Tensor  # [R] bool; the rows that advantages are relative to
    trained: Tensor  # [R] bool; those of them that are trained on
    fair: Tensor  # [R] bool; the policy's own, in equal numbers a prompt: what shows how good it is
    metrics: dict[str, float] = field(default_factory=dict)


class GroupSampler(Protocol):
    """A way to draw the answers of an iteration."""

    def draw(self, prompts: PromptSource, draw: RolloutCollector) -> CollectedRollouts:
        """Draw, and say which rows count. Groups are numbered from 0."""
        ...


@dataclass(frozen=True)
class FixedGroupSampler:
    """`group_size` answers of each prompt, and all of them count."""

    group_size: int

    def draw(self, prompts: PromptSource, draw: RolloutCollector) -> CollectedRollouts:
        """In one round."""
        scored = draw([RolloutRequest(sample, self.group_size, group) for group, sample in enumerate(prompts.next())])
        everything = torch.ones(len(scored.samples), dtype=torch.bool)
        return CollectedRollouts(scored, everything, everything, scored.is_from(Origin.POLICY))


# Dynamic sampling: every group of an iteration says something (DAPO, arXiv:2503.14476).


@dataclass(frozen=True)
class DynamicDraws:
    """Groups whose rewards are all equal are dropped, and other prompts are drawn until there are `groups` others.

    DAPO draws a whole batch anew while one is not full, and trains on the first so many groups; here a round draws as
    many prompts as are missing, so that nothing informative is thrown away. After `max_rounds`, or when the data set
    has no further prompt, what is missing is filled up with dropped groups: they teach nothing, but the size of a batch
    stays what it is configured to be. Those places can be filled by a replay.
    """

    groups: int
    group_size: int
    max_rounds: int

    def draw(self, prompts: PromptSource, draw: RolloutCollector) -> CollectedRollouts:
        """Metrics: `draws/rounds`, `draws/rows`, `draws/dropped_groups` and `draws/filled_groups`."""
        asked, rounds, drawn, telling = prompts.next(), 0, 0, 0
        while asked and rounds < self.max_rounds:
            part = draw([RolloutRequest(sample, self.group_size, drawn + i) for i, sample in enumerate(asked)])
            rounds, drawn = rounds + 1, drawn + len(asked)
            tells = group_spread(part.total, part.group_index) > 0
            telling += len(part.group_index[tells].unique())
            missing = self.groups - telling
            asked = prompts.more(missing) if missing else []
        scored = draw.everything()
        group_index = scored.group_index
        tells = group_spread(scored.total, group_index) > 0
        filling = group_index[~tells].unique()[: max(0, self.groups - telling)]
        kept = tells | torch.isin(group_index, filling)
        return CollectedRollouts(
            scored,
            credited=kept,
            trained=kept,
            fair=scored.is_from(Origin.POLICY),
            metrics={
                "draws/rounds": float(rounds),
                "draws/rows": float(len(group_index)),
                "draws/dropped_groups": float(drawn - telling - len(filling)),
                "draws/filled_groups": float(len(filling)),
            },
        )


# Adaptive allocation: hard and easy prompts are drawn more often (Reinforce-Ada, arXiv:2510.04996).


_DRAWS = 2  # a stream of random numbers of its own


@dataclass(frozen=True)
class AdaptiveDraws:
    """Each prompt is drawn round after round until it has enough good and enough bad answers.

    Then it is left alone, and `group_size` of its answers are trained on, half of them good if there are so many. Their
    advantages are relative to *all* answers of the prompt, as in the paper: the few that stay were picked by their
    reward, so their own mean says nothing. `negatives` = 0 waits for good answers alone.
    """

    group_size: int
    max_rounds: int
    per_round: int
    success: float
    positives: int
    negatives: int
    seed: int

    def draw(self, prompts: PromptSource, draw: RolloutCollector) -> CollectedRollouts:
        """Metrics: `draws/rounds`, `draws/rows`, `draws/trained_rows` and `draws/unresolved_groups`."""
        samples = prompts.next()
        active = list(range(len(samples)))
        fair_rows = rounds = 0
        while active and rounds < self.max_rounds:
            draw([RolloutRequest(samples[group], self.per_round, group) for group in active])
            rounds += 1
            scored = draw.everything()
            fair_rows = fair_rows or len(scored.samples)
            good, bad = self._judged(scored.total)
            count = {group: scored.group_index == group for group in active}
            active = [
                group
                for group, mine in count.items()
                if int((good & mine).sum()) < self.positives or int((bad & mine).sum()) < self.negatives
            ]
        rng = np.random.default_rng([self.seed, draw.iteration, _DRAWS])
        trained = balanced_rows(scored.total >= self.success, scored.total, scored.group_index, self.group_size, rng)
        if not trained.any():  # nothing could be scored: there is nothing to pick from
            trained = torch.ones_like(trained)
        first_round = torch.arange(len(trained)) < fair_rows
        return CollectedRollouts(
            scored,
            credited=torch.ones_like(trained),
            trained=trained,
            fair=scored.is_from(Origin.POLICY) & first_round,
            metrics={
                "draws/rounds": float(rounds),
                "draws/rows": float(len(trained)),
                "draws/trained_rows": float(trained.sum()),
                "draws/unresolved_groups": float(len(active)),
            },
        )

    def _judged(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Which answers are good, and which are bad; neither, if they could not be scored."""
        return total >= self.success, total < self.success


def balanced_rows(
    good: Tensor,  # [R] bool
    total: Tensor,  # [R] float; NaN = could not be scored
    group_index: Tensor,  # [R] int64
    keep: int,
    rng: np.random.Generator,
) -> Tensor:  # [R] bool
    """At most `keep` scored rows of each group, drawn at random, as close to half good and half bad as there are."""
    check_shapes("R", good=good, total=total, group_index=group_index)
    kept = torch.zeros_like(good)
    for group in group_index.unique().tolist():
        mine = (group_index == group) & total.isfinite()
        rows_good, rows_bad = ((mine & which).nonzero()[:, 0].numpy() for which in (good, ~good))
        take_good = min(len(rows_good), max(keep // 2, keep - len(rows_bad)))
        take_bad = min(len(rows_bad), keep - take_good)
        kept[torch.from_numpy(rng.permutation(rows_good)[:take_good])] = True
        kept[torch.from_numpy(rng.permutation(rows_bad)[:take_bad])] = True
    return kept
