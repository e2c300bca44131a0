"""Best of N: order several generated media of each prompt by their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.core.suite import RewardSuite


@dataclass(frozen=True)
class Ranking:
    """The scores of images or videos, and their order within each group."""

    scores: list[dict[str, float]]  # of each medium, by reward, `total` last; NaN = could not be scored
    order: list[list[int]]  # for each group, in the order of first members: its rows from the best to the worst


def rank(samples: Sequence[Sample], media: Sequence[Any], groups: Sequence[int], suite: RewardSuite) -> Ranking:
    """Score all media and order each group by the total. Unscored media come last; ties keep their order.

    Raises:
        TooFewScored: less than `suite.min_valid_share` could be scored.
    """
    rows = zip(samples, media, groups, strict=True)
    output = suite.score([reward_input(sample, made, group, sample.id) for sample, made, group in rows])
    suite.check_valid_share(output)
    names = [*(name for name in output.values if name != "total"), "total"]
    scores = [{name: float(output.values[name][row]) for name in names} for row in range(len(groups))]
    total = np.nan_to_num(output.values["total"].astype(float), nan=-np.inf)
    members = {group: [row for row, each in enumerate(groups) if each == group] for group in groups}
    return Ranking(scores, [sorted(each, key=lambda row: -total[row]) for each in members.values()])
