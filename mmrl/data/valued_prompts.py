"""`ValuedSampler`: prompts that take the places of others are drawn by value, difficulty and uncertainty (VSPO)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl.data.prompts import MAX_VARIANCE, Outcome, VarianceAwareSampler
from mmrl.data.sample import Sample


def task_value(totals: Sequence[float], difficulty: float, uncertainty: float) -> float:
    """Return the value of a prompt from the total rewards, in [0, 1], of two or more of its answers (arXiv:2512.07478).

    `difficulty` times what their mean lacks to 1, plus `uncertainty` times their variance over the largest there is,
    1/4. The paper balances both; the weighted sum is this library's, since only its abstract was read.

    >>> task_value([0.0, 1.0], difficulty=0.2, uncertainty=0.8)
    0.9
    """
    rewards = np.clip(np.asarray(totals, np.float64), 0.0, 1.0)
    return float(difficulty * (1 - rewards.mean()) + uncertainty * rewards.var() / MAX_VARIANCE)


class ValuedSampler(VarianceAwareSampler):
    """A prompt sampler whose further prompts of an iteration are drawn by value, the first ones as its base does.

        sampler = ValuedSampler(samples, groups=8, seed=0, difficulty=0.2, uncertainty=0.8)
        batch = sampler.next()  # 8 samples of a shuffled epoch
        others = sampler.more(3)  # in place of 3 whose answers taught nothing

    A prompt without answers yet has the highest value there is. Drawing is without replacement: no iteration has a
    prompt twice.
    """

    def __init__(
        self,
        samples: Sequence[Sample],  # with unique ids
        groups: int,  # samples in a batch
        seed: int,
        *,
        difficulty: float = 0.2,  # the weight of what the mean reward lacks to 1
        uncertainty: float = 0.8,  # the weight of the variance of rewards
    ) -> None:
        highest = (difficulty + uncertainty) / MAX_VARIANCE
        super().__init__(samples, groups, seed, share=1.0, outcome=highest, diversity=0.0)
        self._difficulty, self._uncertainty = difficulty, uncertainty

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different, as they come in the epoch."""
        self.begin_batch()
        self._chosen = self.take(self._groups)
        return [self.samples[index] for index in self._chosen]

    def score_of(self, found: Outcome) -> float:
        """Return the value of a prompt from two or more scored answers."""
        return task_value(found.totals, self._difficulty, self._uncertainty)

    def metrics(self) -> dict[str, float]:
        """Return the share of prompts that have a value, and their mean value."""
        return {name.replace("score", "value"): each for name, each in super().metrics().items()}
