"""Group samplers that look at the rewards of one round before they request the next one.

`DynamicGroupSampler` replaces groups without variance (DAPO, arXiv:2503.14476); `AdaptiveGroupSampler` samples a prompt
until it has enough good and enough bad answers (Reinforce-Ada, arXiv:2510.04996). Both follow the protocol
`mmrl.training.rollouts.collect.GroupSampler`, and keep no state: everything follows from the answers so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.groups import group_spread
from mmrl.checks import check_shapes
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.collect import CollectedRollouts, FixedGroupSampler, Origin, ScoredRollouts

ADAPTIVE_STREAM = 2
"""The number of the random stream that picks rows."""


@dataclass(frozen=True)
class DynamicGroupSampler:
    """Groups whose rewards are all equal are dropped, and other prompts are sampled, until `groups` groups differ.

    DAPO samples a whole batch anew while one is not full, and trains on the first groups of it; here a round samples
    as many prompts as are missing, so that no informative group is dropped. After `max_rounds`, or when the data set
    has no further prompt, the batch is filled up with dropped groups: their advantages are 0, but the size of a batch
    stays as configured. A replay can take those places.
    """

    groups: int
    group_size: int
    max_rounds: int

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return a request for each prompt that is missing; none when the batch is full or the rounds are over."""
        if scored is None:
            rounds, first, samples = 0, 0, prompts.next()
        else:
            rounds, first = len(scored.round_sizes), len(scored.group_index.unique())
            missing = self.groups - len(scored.group_index[_is_informative(scored)].unique())
            # The prompts of the round after the last are taken too, and not used: runs of older versions took them.
            samples = prompts.more(missing) if missing else []
        if rounds >= self.max_rounds:
            return []
        return [RolloutRequest(sample, self.group_size, first + number) for number, sample in enumerate(samples)]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select the informative groups, and others where they are too few.

        Metrics: `draws/rounds`, `draws/rows`, `draws/dropped_groups` and `draws/filled_groups`.
        """
        group_index, informative = scored.group_index, _is_informative(scored)
        num_informative = len(group_index[informative].unique())
        filling = group_index[~informative].unique()[: max(0, self.groups - num_informative)]
        kept = informative | torch.isin(group_index, filling)
        return CollectedRollouts(
            scored,
            in_baseline=kept,
            trained=kept,
            on_policy=scored.is_from(Origin.POLICY),
            metrics={
                "draws/rounds": float(len(scored.round_sizes)),
                "draws/rows": float(len(group_index)),
                "draws/dropped_groups": float(len(group_index.unique()) - num_informative - len(filling)),
                "draws/filled_groups": float(len(filling)),
            },
        )


@dataclass(frozen=True)
class SpreadGroupSampler(FixedGroupSampler):
    """`group_size` answers to each prompt, of which groups with little spread are left out of training.

    For rewards that take many values, such as a likelihood: two answers are hardly ever equal, and dividing by a small
    spread would make much of nothing. If no group has any spread, all are trained on.
    """

    below: float = 0.5
    """The share of the mean spread under which a group is left out."""

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select the groups with enough spread. Metrics: `draws/dropped_groups` and `draws/mean_spread`."""
        total, group_index = scored.total, scored.group_index
        groups, place = group_index.unique(return_inverse=True)
        known = [total[(group_index == group) & total.isfinite()] for group in groups]
        spread = torch.stack([each.std(correction=0) if len(each) else total.new_zeros(()) for each in known])
        mean = spread.mean()
        kept = (spread >= self.below * mean)[place]
        return CollectedRollouts(
            scored,
            in_baseline=kept,
            trained=kept,
            on_policy=scored.is_from(Origin.POLICY),
            metrics={
                "draws/dropped_groups": float(len(groups) - len(group_index[kept].unique())),
                "draws/mean_spread": float(mean),
            },
        )


def _is_informative(scored: ScoredRollouts) -> Tensor:
    """Return [R] bool: True where the rewards of the row's group differ."""
    return group_spread(scored.total, scored.group_index) > 0


@dataclass(frozen=True)
class AdaptiveGroupSampler:
    """Each prompt is sampled round after round until it has enough good and enough bad answers.

    Then `group_size` of its answers are trained on, half of them good if there are as many. Their advantages are
    relative to *all* answers of the prompt, as in the paper: the rows that stay were picked by their reward, so their
    own mean is biased. `negatives` = 0 waits for good answers only.
    """

    group_size: int
    max_rounds: int
    per_round: int
    success: float  # a total of at least this is a good answer
    positives: int  # good answers that a prompt needs
    negatives: int  # bad answers that a prompt needs
    seed: int

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return a request for each prompt that needs more answers; none after the last round."""
        if scored is None:
            samples = prompts.next() if self.max_rounds else []
            return [RolloutRequest(sample, self.per_round, group) for group, sample in enumerate(samples)]
        if len(scored.round_sizes) >= self.max_rounds:
            return []
        first: dict[int, Sample] = {}
        for group, sample in zip(scored.group_index.tolist(), scored.samples, strict=True):
            first.setdefault(group, sample)
        return [RolloutRequest(first[group], self.per_round, group) for group in self._unresolved(scored)]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select `group_size` rows of each group.

        Metrics: `draws/rounds`, `draws/rows`, `draws/trained_rows` and `draws/unresolved_groups`.
        """
        rng = np.random.default_rng([self.seed, iteration, ADAPTIVE_STREAM])
        trained = balanced_rows(scored.total >= self.success, scored.total, scored.group_index, self.group_size, rng)
        if not trained.any():  # no row could be scored: there are none to pick
            trained = torch.ones_like(trained)
        first_round = torch.arange(len(trained)) < scored.round_sizes[0]
        return CollectedRollouts(
            scored,
            in_baseline=torch.ones_like(trained),
            trained=trained,
            on_policy=scored.is_from(Origin.POLICY) & first_round,
            metrics={
                "draws/rounds": float(len(scored.round_sizes)),
                "draws/rows": float(len(trained)),
                "draws/trained_rows": float(trained.sum()),
                "draws/unresolved_groups": float(len(self._unresolved(scored))),
            },
        )

    def _unresolved(self, scored: ScoredRollouts) -> list[int]:
        """Return the groups that lack good or bad answers. Answers that could not be scored are neither."""
        good, bad = scored.total >= self.success, scored.total < self.success
        return [
            group
            for group in scored.group_index.unique().tolist()
            for mine in [scored.group_index == group]
            if int((good & mine).sum()) < self.positives or int((bad & mine).sum()) < self.negatives
        ]


def balanced_rows(
    good: Tensor,  # [R] bool
    total: Tensor,  # [R] float; NaN = could not be scored
    group_index: Tensor,  # [R] int64
    keep: int,
    rng: np.random.Generator,
) -> Tensor:  # [R] bool
    """Keep at most `keep` random scored rows of each group, as close to half good and half bad as possible."""
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
