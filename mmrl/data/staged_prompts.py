"""`StagedSampler`: a curriculum by stages that the data set itself names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from mmrl.data.prompts import PromptSampler, PromptSource
from mmrl.data.sample import Sample
from mmrl.errors import DataError

STAGE = "stage"
"""The key in `Sample.metadata` of the number of the stage that a sample belongs to."""


class StagedSampler(PromptSource):
    """Batches of `groups` samples of one stage after another; within a stage in shuffled epochs.

        sampler = StagedSampler(samples, groups=8, seed=0, iterations=100, shares=(1.0, 3.0))
        batch = sampler.next()   # of the lowest stage; after 25 batches, of the next one

    The last stage goes on for as long as batches are wanted.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        groups: int,
        seed: int,
        iterations: int,  # that the stages share
        shares: Sequence[float] = (),  # of the stages, in any unit; empty: all alike
    ) -> None:
        """
        Raises:
            DataError: a sample has no stage, a stage has too few samples, or the shares are not as many as the stages.
        """
        for sample in samples:
            if not isinstance(sample.metadata.get(STAGE), int):
                raise DataError(
                    f"sample {sample.id!r}: metadata.{STAGE} is {sample.metadata.get(STAGE)!r:.40}; with data.prompts "
                    "staged it is the number of the sample's stage"
                )
        numbers = sorted({sample.metadata[STAGE] for sample in samples})
        if shares and len(shares) != len(numbers):
            raise DataError(f"data.prompts.shares: there are {len(shares)}, and the samples have {len(numbers)} stages")
        self._stages = [
            PromptSampler([sample for sample in samples if sample.metadata[STAGE] == number], groups, seed)
            for number in numbers
        ]
        sums = list(accumulate(shares or [1.0] * len(numbers)))
        self._ends = [round(iterations * each / sums[-1]) for each in sums]  # the batches after which each stage ends
        self._batches = 0

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self._batches += 1
        return self._stage.next()

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        return self._stage.more(count)

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """
        for stage in self._stages[:-1]:
            if any(sample.id == id for sample in stage.samples):
                return stage.sample(id)
        return self._stages[-1].sample(id)

    def metrics(self) -> dict[str, float]:
        """Return the place of the current stage, from 0."""
        return {"prompts/stage": float(self._place)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""
        return {"batches": self._batches, "stages": [stage.state_dict() for stage in self._stages]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to other samples.
        """
        if len(state["stages"]) != len(self._stages):
            raise DataError("the data set is not the one that the run began with: its stages are not as many")
        self._batches = int(state["batches"])
        for stage, own in zip(self._stages, state["stages"], strict=True):
            stage.load_state_dict(own)

    @property
    def _place(self) -> int:
        before = max(self._batches, 1) - 1  # the batches before the current one
        return next((place for place, end in enumerate(self._ends) if before < end), len(self._stages) - 1)

    @property
    def _stage(self) -> PromptSampler:
        return self._stages[self._place]
