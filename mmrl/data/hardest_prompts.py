"""`HardestSampler`: passes over fewer and fewer prompts, the hardest of those before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrl.data.prompts import Outcome, PromptSampler, PromptSource, found_by_id
from mmrl.data.sample import Sample
from mmrl.errors import DataError


class HardestSampler(PromptSource):
    """A prompt source whose every pass has the hardest share of the prompts of the pass before (DRIVE).

        sampler = HardestSampler(samples, groups=2, seed=0, keep=0.5)

    The first pass has all samples. A prompt is the harder the lower the mean total reward of its answers in the pass
    that ends; of equally hard ones, the earlier sample stays. There are always as many as an iteration needs.
    """

    def __init__(self, samples: Sequence[Sample], groups: int, seed: int, *, keep: float = 0.5) -> None:
        """`keep` in (0, 1] is the share of a pass's prompts that the next one has, rounded up."""
        if not 0 < keep <= 1:
            raise DataError(f"data.prompts.keep is {keep}: the share of prompts that stay is above 0 and at most 1")
        self.samples, self._groups, self._seed, self._keep = list(samples), groups, seed, keep
        self._index = {sample.id: index for index, sample in enumerate(self.samples)}
        self._begin(0, list(range(len(self.samples))))

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different; the next pass begins where one is complete."""
        if self._pass.epoch >= 1:
            self._begin(self._number + 1, self._hardest())
        return self._pass.next()

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        return self._pass.more(count)

    def sample(self, id: str) -> Sample:
        """Return the sample with this id, also one of an earlier pass.

        Raises:
            DataError: there is no such sample.
        """
        return self.samples[found_by_id(self._index, id)]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Remember the mean total reward of each prompt."""
        for each in outcomes:
            if each.totals:
                self._means[self._index[each.sample.id]] = float(np.mean(each.totals))

    def metrics(self) -> dict[str, float]:
        """Return the number of the pass, from 0, and the share of all prompts that it has."""
        return {"prompts/pass": float(self._number), "prompts/share": len(self._kept) / len(self.samples)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""
        means = {str(index): mean for index, mean in self._means.items()}
        return {
            "seed": self._seed,
            "number": self._number,
            "kept": self._kept,
            "means": means,
            "pass": self._pass.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to other samples.
        """
        self._seed = int(state["seed"])
        self._begin(int(state["number"]), [int(index) for index in state["kept"]])
        self._means.update({int(index): float(mean) for index, mean in state["means"].items()})
        self._pass.load_state_dict(state["pass"])

    def _begin(self, number: int, kept: list[int]) -> None:
        self._number, self._kept = number, kept
        self._means: dict[int, float] = {}  # of this pass
        if max(kept, default=0) >= len(self.samples):
            raise DataError("the data set is not the one that the run began with: resume with the same samples")
        self._pass = PromptSampler([self.samples[index] for index in kept], self._groups, self._seed + number)

    def _hardest(self) -> list[int]:
        """Return the samples of the next pass, in the order of the data set; those without a score are the hardest."""
        count = max(self._groups, int(np.ceil(self._keep * len(self._kept))))
        by_mean = sorted(self._kept, key=lambda index: (self._means.get(index, -np.inf), index))
        return sorted(by_mean[:count])
