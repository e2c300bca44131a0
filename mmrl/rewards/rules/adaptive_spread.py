"""Spread the scores of a reward where they bunch, so that its differences count beside those of other rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, Status
from mmrl.rewards.core.reward_io import RewardInput, Scope

Floats = NDArray[np.float64]


def spread_scores(
    scores: Floats,  # [G], finite
    least: float,
    most: float,
    bounds: tuple[float, float],
) -> Floats:  # [G]
    """Return scores whose standard deviation is at least `least`: the distances from their mean are multiplied.

    The factor is at most `most`, and scores that are spread enough or all equal stay as they are. The order never
    changes, but what leaves `bounds` is clipped, so that ties are possible there.

    >>> spread_scores(np.array([0.90, 0.92]), least=0.1, most=20.0, bounds=(0.0, 1.0)).round(3)
    array([0.81, 1.  ])
    """
    deviation = float(scores.std())
    if not 0 < deviation < least or np.ptp(scores) == 0:
        return scores
    centre = scores.mean()
    return np.asarray(np.clip(centre + (scores - centre) * min(most, least / deviation), *bounds))


class AdaptiveSpread(GroupReward):
    """Another reward of the answers to a prompt, spread out where its scores bunch: ARMed's adaptive semantic reward.

    In the range of the other reward, which `of` names; -1 for malformed answers. Encoders give nearly the same score to
    most answers: beside rewards of wider spread such a reward has no say. Here the scores of a group are spread about
    their mean to a standard deviation of `least`, by a factor of at most `most`. The measure of bunching is this
    library's: the paper's formula was not found. The gdpo advantage normalises every reward in any case.

        load("adaptive_spread", of="bmas", of_args={"model": "Qwen/Qwen2.5-0.5B"})
    """

    name, needs, range = "adaptive_spread", ("text",), (-1.0, 1.0)
    source = "ARMed, arXiv:2508.12957"
    licence = "of the other reward"

    def __init__(
        self, of: str, of_args: Mapping[str, Any] | None = None, least: float = 0.1, most: float = 20.0
    ) -> None:
        """
        Args:
            of: the other reward, of single answers, with values in [-1, 1].
            of_args: its arguments.
            least: the least standard deviation of a group's scores, above 0.
            most: the largest factor, at least 1: it bounds what noise can become.
        """
        if not (math.isfinite(least) and least > 0 and math.isfinite(most) and most >= 1):
            raise RewardError(f"adaptive_spread: least is {least} and most {most}; expected above 0, and at least 1")
        self.inner, self.least, self.most = load(of, **(of_args or {})), least, most
        self.inner_rewards = (self.inner,)
        low, high = self.inner.range
        fits = self.inner.scope is Scope.SAMPLE and not self.inner.scheduled and self.inner.direction == "higher"
        if not fits or low < -1 or high > 1:
            raise RewardError(f"adaptive_spread: {of} must score single answers in [-1, 1], higher being better")

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score a group; malformed answers are invalid, and move nothing."""
        output = self.inner.score(items)
        name, status = self.inner.name, output.status[self.inner.name]
        values = output.values[name].astype(np.float64)
        scored = [row for row, each in enumerate(status) if each is Status.OK]
        spread = spread_scores(values[scored], self.least, self.most, self.inner.range) if scored else values[:0]
        found: dict[int, Scored] = dict(zip(scored, spread.tolist(), strict=True))
        for row, each in enumerate(status):
            if each is Status.INVALID:
                found[row] = InvalidAnswer(str(output.detail[row].get(name, "malformed")))
            elif failure := output.failure_of(name, row):
                found[row] = failure
        return [found[row] for row, _ in enumerate(items)]
