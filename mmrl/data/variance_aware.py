"""Variance-aware sampling of prompts (MMR1, arXiv:2509.21268): prompts with varied rewards are sampled more often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.data.prompts import Outcome, PromptSampler
from mmrl.data.sample import Sample

MAX_VARIANCE = 0.25
"""The largest variance of rewards in [0, 1]: half of them 0, half of them 1."""


class VarianceAwareSampler:
    """A prompt sampler that samples a share of each batch by score and takes the rest from a shuffled epoch.

    The score of a prompt is `outcome` x the variance of its answers' total rewards + `diversity` x the diversity of the
    answers (the paper's variance promotion score; for rewards of 0 and 1 the variance is its p(1 - p)).

    Differences from the paper: scores come from the answers of training itself instead of a regular pass over the whole
    data set; a prompt without a score has the highest possible one, so that all are tried; sampling is without
    replacement, so that no batch contains a prompt twice; diversity is distinct-n.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        groups: int,
        seed: int,
        *,
        share: float = 0.5,
        outcome: float = 0.8,
        diversity: float = 0.2,
    ) -> None:
        """
        Args:
            samples: a data set, with unique ids.
            groups: number of samples in a batch.
            seed: seed of the order and of the sampling.
            share: share of a batch, in [0, 1], that is sampled by score; rounded down to whole prompts.
            outcome: weight of the variance of total rewards.
            diversity: weight of the diversity of answers.
        """
        self._uniform = PromptSampler(samples, groups, seed)
        self._groups, self._seed, self._share = groups, seed, share
        self._weights = (outcome, diversity)
        self._index = {sample.id: index for index, sample in enumerate(self._uniform.samples)}
        self._scores: dict[int, float] = {}
        self._draws = 0
        self._batch: list[int] = []

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self._batch = []
        self._uniform.begin_batch()
        return self.more(self._groups)

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples for the current iteration, different from those it already has."""
        by_score = int(self._share * count)
        next_ones = self._uniform.take(count - by_score, without=self._batch)
        self._batch += next_ones
        chosen = self._by_score(by_score)
        self._batch += chosen
        return [self._uniform.samples[index] for index in [*next_ones, *chosen]]

    def sample(self, id: str) -> Sample:
        """Return the sample with an id.

        Raises:
            DataError: there is none.
        """
        return self._uniform.sample(id)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Update the scores of the prompts of an iteration; with fewer than two scored answers a score is kept."""
        outcome, diversity = self._weights
        for each in outcomes:
            if len(each.totals) > 1:
                score = outcome * float(np.var(each.totals)) + diversity * distinct_share(each.answers)
                self._scores[self._index[each.sample.id]] = score

    def metrics(self) -> dict[str, float]:
        """Return the share of prompts that have a score, and their mean score."""
        seen = {"prompts/scored_share": len(self._scores) / len(self._uniform.samples)}
        return seen | ({"prompts/score": float(np.mean([*self._scores.values()]))} if self._scores else {})

    def scores(self) -> NDArray[np.float64]:
        """Return the scores [N] of all samples, in their order."""
        outcome, diversity = self._weights
        scores = np.full(len(self._uniform.samples), outcome * MAX_VARIANCE + diversity)
        scores[list(self._scores)] = list(self._scores.values())
        return scores

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the following batches, as JSON values."""
        scores = {str(index): score for index, score in self._scores.items()}
        return {"uniform": self._uniform.state_dict(), "draws": self._draws, "scores": scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            DataError: the state belongs to samples with other ids or prompts, or in another order.
        """
        self._uniform.load_state_dict(state["uniform"])
        self._draws = int(state["draws"])
        self._scores = {int(index): float(score) for index, score in state["scores"].items()}

    def _by_score(self, count: int) -> list[int]:
        """Sample from the prompts that are not in the batch, without replacement, with probabilities by score."""
        remaining = np.setdiff1d(np.arange(len(self._uniform.samples)), self._batch)
        scores = self.scores()[remaining]
        count = min(count, len(remaining))
        if not count:
            return []
        if np.count_nonzero(scores) < count:  # too few prompts with a positive score: the others fill the batch
            scores = scores + (1e-12 if scores.any() else 1.0)
        self._draws += 1
        rng = np.random.default_rng([self._seed, self._draws, 1])
        return [int(index) for index in rng.choice(remaining, count, replace=False, p=scores / scores.sum())]


def distinct_share(answers: Sequence[Sequence[Any]], n: int = 2) -> float:
    """Return the share of distinct n-grams among several answers, in [0, 1] (distinct-n, arXiv:1510.03055).

    An answer shorter than n is one n-gram; 0 for no answers.

    >>> distinct_share([["a", "b", "c"], ["a", "b", "d"]])
    0.75
    """
    grams: Counter[tuple[Any, ...]] = Counter()
    for answer in answers:
        grams.update(tuple(answer[start : start + n]) for start in range(max(1, len(answer) - n + 1)))
    return len(grams) / grams.total() if grams else 0.0
