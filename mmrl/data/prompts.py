"""Prompt sources: the prompts of each iteration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mmrl.data.sample import Sample
from mmrl.errors import DataError


@dataclass(frozen=True)
class Outcome:
    """The rewards and answers of one prompt in an iteration."""

    sample: Sample
    totals: Sequence[float]  # of the answers that could be scored
    answers: Sequence[Sequence[Any]]  # the tokens or words of each answer; empty for images and videos


class PromptSource(Protocol):
    """A source of prompts, iteration by iteration. Its state is saved in checkpoints."""

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        ...

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        ...

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """
        ...

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Read the outcomes of an iteration's prompts."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics of the source."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


class PromptSampler:
    """An endless sequence of batches of `groups` samples, shuffled in each epoch.

        sampler = PromptSampler(read_samples("train.jsonl"), groups=8, seed=0)
        batch = sampler.next()  # 8 samples

    Each sample comes once in an epoch, and never twice in a batch, not even in one that spans two epochs. The order
    depends on the seed alone, and `state_dict` resumes it exactly.
    """

    def __init__(self, samples: Sequence[Sample], groups: int, seed: int) -> None:
        if groups < 1:
            raise DataError(f"groups is {groups}; an iteration needs at least one prompt")
        if len(samples) < groups:
            raise DataError(
                f"the data set has {len(samples)} samples, fewer than the {groups} groups of an iteration: "
                "add samples or lower data.groups"
            )
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
        if id not in self._by_id:
            raise DataError(f"the data set has no sample {id!r}: resume with the same samples")
        return self._by_id[id]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Do nothing: all samples come equally often."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

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
