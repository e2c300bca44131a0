"""`MixtureSampler`: prompts of several sources, in stated shares of every iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.data.prompts import PromptSampler, PromptSource, check_enough
from mmrl.data.sample import Sample
from mmrl.errors import DataError


class MixtureSampler(PromptSource):
    """A prompt source that draws a stated share of the prompts of an iteration from each source of the samples.

        sampler = MixtureSampler(samples, groups=8, seed=0, weights={"counting": 3, "charts": 1})
        batch = sampler.next()  # 6 samples of counting, 2 of charts

    Each source has its own shuffled epochs. The share of a source need not be a whole number of prompts: what an
    iteration lacks is owed to later ones, so that over many iterations the shares are exact. A source that has no
    further prompt for an iteration gives its places to the others. `weights` may be moved between iterations.
    """

    def __init__(self, samples: Sequence[Sample], groups: int, seed: int, *, weights: Mapping[str, float]) -> None:
        """Only the ratio of `weights` counts.

        Raises:
            DataError: a weight names no source of the samples, a source has no weight, weights are negative or all 0,
                or the samples are fewer than `groups`.
        """
        parts: dict[str, list[Sample]] = {}
        for sample in samples:
            parts.setdefault(sample.source, []).append(sample)
        if set(parts) != set(weights):
            raise DataError(
                f"data.prompts.weights has {', '.join(sorted(weights))}, and the samples are of the sources "
                f"{', '.join(sorted(parts))}: give each source a weight, 0 to leave it out"
            )
        check_enough(samples, groups)
        self._groups = groups
        self._parts = {name: PromptSampler(part, 1, seed) for name, part in sorted(parts.items())}
        self._owed = dict.fromkeys(self._parts, 0.0)
        self._counts = dict.fromkeys(self._parts, 0)
        self.weights = dict(weights)

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each source."""
        return self._weights

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        if min(weights.values()) < 0 or not any(weights.values()):
            raise DataError(f"data.prompts.weights is {dict(weights)}: weights are 0 or more, and one is above 0")
        self._weights = {name: float(weights[name]) for name in self._parts}

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self._counts = dict.fromkeys(self._parts, 0)
        for part in self._parts.values():
            part.begin_batch()
        return self.more(self._groups)

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        taken: list[Sample] = []
        left = {name: weight for name, weight in self._weights.items() if weight}
        total = sum(left.values())
        for name, weight in left.items():
            self._owed[name] += count * weight / total
        while len(taken) < count and left:
            name = max(left, key=lambda each: self._owed[each])  # of equal ones the first by name
            found = self._parts[name].more(1)
            if not found:
                del left[name]
                continue
            self._owed[name] -= 1
            self._counts[name] += 1
            taken += found
        return taken

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """
        for part in self._parts.values():
            if part.has(id):
                return part.sample(id)
        raise DataError(f"the data set has no sample {id!r}: resume with the same samples")

    def metrics(self) -> dict[str, float]:
        """Return the share of each source among the prompts of the iteration."""
        drawn = max(1, sum(self._counts.values()))
        return {f"prompts/share/{name}": count / drawn for name, count in self._counts.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        return {"parts": parts, "owed": self._owed, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to other samples.
        """
        if set(state["parts"]) != set(self._parts):
            raise DataError("the data set is not the one that the run began with: resume with the same samples")
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        self._owed = {name: float(state["owed"][name]) for name in self._parts}
        self.weights = state["weights"]
