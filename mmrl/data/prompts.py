"""Which prompts an iteration trains on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrl.data.jsonl import DataError
from mmrl.data.sample import Sample


class PromptSampler:
    """Endless batches of `groups` samples, shuffled anew each epoch.

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
        self._samples = list(samples)
        self._groups = groups
        self._fingerprint = hashlib.sha256("\0".join(map(_told_apart_by, self._samples)).encode()).hexdigest()
        self._seed = seed
        self._begin(epoch=0, after=[])

    @property
    def epoch(self) -> float:
        """How often the data set was gone through."""
        return self._epoch + self._position / len(self._samples)

    def next(self) -> list[Sample]:
        """The samples of the next iteration, all different."""
        batch = self._take(self._groups)
        if len(batch) < self._groups:
            self._begin(self._epoch + 1, after=batch)
            batch += self._take(self._groups - len(batch))
        return [self._samples[index] for index in batch]

    def state_dict(self) -> dict[str, Any]:
        """All that decides which batches follow, fit for JSON."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "after": list(self._after),
            "samples": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            DataError: the state belongs to samples with other ids or prompts, or in another order.
        """
        if state["samples"] != self._fingerprint:
            raise DataError("the data set is not the one that the run began with: resume with the same samples")
        self._seed = int(state["seed"])
        self._begin(int(state["epoch"]), [int(index) for index in state["after"]])
        self._position = int(state["position"])

    def _begin(self, epoch: int, after: list[int]) -> None:
        """Shuffle. `after` are the samples of the batch that is being filled: they come last in the new epoch."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._samples)).tolist()
        self._epoch, self._position, self._after = epoch, 0, list(after)
        self._order: list[int] = sorted(order, key=set(after).__contains__)  # stable

    def _take(self, n: int) -> list[int]:
        taken = self._order[self._position : self._position + n]
        self._position += len(taken)
        return taken


def _told_apart_by(sample: Sample) -> str:
    conditions = f"\0{json.dumps(dict(sample.conditions), sort_keys=True)}" if sample.conditions else ""
    return f"{sample.id}\0{sample.prompt}{conditions}"
