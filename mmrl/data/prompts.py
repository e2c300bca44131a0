"""Prompt sources: the prompts of each iteration, in shuffled epochs or sampled by the variance of their rewards."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmrl.data.sample import Sample
from mmrl.errors import DataError

MAX_VARIANCE = 0.25
"""The largest variance of rewards in [0, 1]: half of them 0, half of them 1."""


@dataclass(frozen=True)
class Outcome:
    """The rewards and answers of one prompt in an iteration."""

    sample: Sample
    totals: Sequence[float]  # of the answers that could be scored
    answers: Sequence[Sequence[Any]]  # the tokens or words of each answer; empty for images and videos
    answer: Any = None  # the answer that `wanted_answers` names, a text, an image or the frames of a video


class PromptSource(Protocol):
    """A source of prompts, iteration by iteration. Its state is saved in checkpoints."""

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """

    def wanted_answers(self, outcomes: Sequence[Outcome]) -> Sequence[int | None]:
        """Return the place among `totals` of the answer of each outcome that `learn` reads whole; by default none."""
        return [None] * len(outcomes)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Read the outcomes of an iteration's prompts; by default they have no effect."""
        return

    def metrics(self) -> dict[str, float]:
        """Return metrics of the source; by default none."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""


T = TypeVar("T")


def found_by_id(known: Mapping[str, T], id: str) -> T:
    """Return what a sampler keeps of the sample with this id.

    Raises:
        DataError: the data set has no such sample.
    """
    if id not in known:
        raise DataError(f"the data set has no sample {id!r}: resume with the same samples")
    return known[id]


def check_enough(samples: Sequence[Sample], groups: int) -> None:
    """Raise DataError unless an iteration can have `groups` different samples."""
    if len(samples) < groups:
        raise DataError(
            f"the data set has {len(samples)} samples, fewer than the {groups} groups of an iteration: "
            "add samples or lower data.groups"
        )


class PromptSampler(PromptSource):
    """An endless sequence of batches of `groups` samples, shuffled in each epoch.

        sampler = PromptSampler(read_samples("train.jsonl"), groups=8, seed=0)
        batch = sampler.next()  # 8 samples

    Each sample comes once in an epoch, and never twice in a batch, not even in one that spans two epochs. The order
    depends on the seed alone, and `state_dict` resumes it exactly.
    """

    def __init__(self, samples: Sequence[Sample], groups: int, seed: int) -> None:
        if groups < 1:
            raise DataError(f"groups is {groups}; an iteration needs at least one prompt")
        check_enough(samples, groups)
        self.samples = list(samples)
        self._groups = groups
        self._fingerprint = hashlib.sha256("\0".join(map(_identity, self.samples)).encode()).hexdigest()
        self._by_id = {sample.id: sample for sample in self.samples}
        self._seed = seed
        self.begin_batch()
        self._begin(epoch=0, after=[])

    @property
    def epoch(self) -> float:
        """The number of passes over the data set, with a fraction."""
        return self._epoch + self._position / len(self.samples)

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self.begin_batch()
        return self.more(self._groups)

    def begin_batch(self) -> None:
        """Begin another iteration, in which all samples may come again."""
        self._batch: list[int] = []  # of the current iteration

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        return [self.samples[index] for index in self.take(count)]

    def take(self, count: int, without: Collection[int] = ()) -> list[int]:
        """Return indices like `more`, without those in `without`."""
        taken: list[int] = []
        skipped = set(without)
        while len(taken) < count and len(skipped.union(self._batch)) < len(self.samples):
            if self._position == len(self._order):
                self._begin(self._epoch + 1, after=self._batch)
            index = self._order[self._position]
            self._position += 1
            if index not in skipped:
                taken.append(index)
                self._batch.append(index)
        return taken

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """
        return found_by_id(self._by_id, id)

    def has(self, id: str) -> bool:
        """Return whether the data set has a sample with this id."""
        return id in self._by_id

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which batches follow, fit for JSON."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "after": list(self._after),
            "samples": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to samples with other ids or prompts, or in another order.
        """
        if state["samples"] != self._fingerprint:
            raise DataError("the data set is not the one that the run began with: resume with the same samples")
        self._seed = int(state["seed"])
        self._begin(int(state["epoch"]), [int(index) for index in state["after"]])
        self._position = int(state["position"])

    def _begin(self, epoch: int, after: list[int]) -> None:
        """Shuffle. `after` are the samples of the unfinished batch: they come last in the new epoch."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self.samples)).tolist()
        self._epoch, self._position, self._after = epoch, 0, list(after)
        self._order: list[int] = sorted(order, key=set(after).__contains__)  # stable


def _identity(sample: Sample) -> str:
    conditions = f"\0{json.dumps(dict(sample.conditions), sort_keys=True)}" if sample.conditions else ""
    return f"{sample.id}\0{sample.prompt}{conditions}"


class VarianceAwareSampler(PromptSampler):
    """A prompt sampler that samples a share of each batch by score (MMR1, arXiv:2509.21268), the rest as its base does.

    The score of a prompt is `outcome` x the variance of its answers' total rewards + `diversity` x the diversity of the
    answers (the paper's variance promotion score; for rewards of 0 and 1 the variance is its p(1 - p)).

    Differences from the paper: scores come from the answers of training itself instead of a regular pass over the whole
    data set; a prompt without a score has the highest possible one, so that all are tried; sampling is without
    replacement, so that no batch contains a prompt twice; diversity is distinct-n.
    """

    def __init__(
        self,
        samples: Sequence[Sample],  # with unique ids
        groups: int,  # samples in a batch
        seed: int,
        *,
        share: float = 0.5,  # of a batch, in [0, 1], that is sampled by score; rounded down to whole prompts
        outcome: float = 0.8,  # weight of the variance of total rewards
        diversity: float = 0.2,  # weight of the diversity of answers
    ) -> None:
        super().__init__(samples, groups, seed)
        self._share, self._weights = share, (outcome, diversity)
        self._draw_seed = seed  # a resumed sampler keeps its own
        self._index = {sample.id: index for index, sample in enumerate(self.samples)}
        self._scores: dict[int, float] = {}
        self._draws = 0

    def begin_batch(self) -> None:
        """Begin another iteration, in which all samples may come again."""
        super().begin_batch()
        self._chosen: list[int] = []  # of the current iteration, by score too

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        by_score = int(self._share * count)
        before = len(self._chosen)
        self._chosen += self.take(count - by_score, without=self._chosen)
        self._chosen += self._by_score(by_score)
        return [self.samples[index] for index in self._chosen[before:]]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Update the scores of the prompts of an iteration; with fewer than two scored answers a score is kept."""
        for each in outcomes:
            if len(each.totals) > 1:
                self._scores[self._index[each.sample.id]] = self.score_of(each)

    def score_of(self, found: Outcome) -> float:
        """Return the score of a prompt from two or more scored answers."""
        outcome, diversity = self._weights
        return outcome * float(np.var(found.totals)) + diversity * distinct_share(found.answers)

    def metrics(self) -> dict[str, float]:
        """Return the share of prompts that have a score, and their mean score."""
        seen = {"prompts/scored_share": len(self._scores) / len(self.samples)}
        return seen | ({"prompts/score": float(np.mean([*self._scores.values()]))} if self._scores else {})

    def scores(self) -> NDArray[np.float64]:
        """Return the scores [N] of all samples, in their order."""
        outcome, diversity = self._weights
        scores = np.full(len(self.samples), outcome * MAX_VARIANCE + diversity)
        scores[list(self._scores)] = list(self._scores.values())
        return scores

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the following batches, as JSON values."""
        scores = {str(index): score for index, score in self._scores.items()}
        return {"uniform": super().state_dict(), "draws": self._draws, "scores": scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            DataError: the state belongs to samples with other ids or prompts, or in another order.
        """
        super().load_state_dict(state["uniform"])
        self._draws = int(state["draws"])
        self._scores = {int(index): float(score) for index, score in state["scores"].items()}

    def _by_score(self, count: int) -> list[int]:
        """Sample from the prompts that are not in the batch, without replacement, with probabilities by score."""
        remaining = np.setdiff1d(np.arange(len(self.samples)), self._chosen)
        scores = self.scores()[remaining]
        count = min(count, len(remaining))
        if not count:
            return []
        if np.count_nonzero(scores) < count:  # too few prompts with a positive score: the others fill the batch
            scores = scores + (1e-12 if scores.any() else 1.0)
        self._draws += 1
        rng = np.random.default_rng([self._draw_seed, self._draws, 1])
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
