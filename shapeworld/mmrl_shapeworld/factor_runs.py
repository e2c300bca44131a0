"""An experiment for studies of ranked factors: who labels the pairs that a head is trained on, a tree or a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mmrl.config.reward_model import RankedFactorConfig, RewardTrainingConfig
from mmrl.rewards.learned.head_training import JudgedPairs, axis_logits, train_pair_head
from mmrl.rewards.learned.ranked_factors import factor_margins, factors_of, ranked_sides
from mmrl.rewards.learned.score_head import HeadShape
from mmrl_shapeworld import preferences
from mmrl_shapeworld.preference_runs import HIDDEN, pairs_of

FACTORS = ("match", "size", "centre")
"""From the most important to the least."""
LEAST = 0.15
"""The least difference of a factor in the pairs by which it is measured, in its standard deviations."""


def factor_labels(
    seed: int,
    on: str,
    labels: str,
    pairs: int = 512,
    steps: int = 200,
    scale: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    margins: Mapping[str, float] | None = None,
) -> dict[str, Sequence[float]]:
    """Train a head on pairs that ranked factors label, and ask whether it ranks further pictures by the first factor.

    Args:
        seed: of the pairs that are drawn, and of the head.
        on: the set that is judged: development or validation.
        labels: `tree` (HERON), or `sum`: the answer with the larger weighted sum is better.
        pairs: training pairs.
        steps: updates of the head.
        scale: {factor: its unit}; 1 for others.
        weights: {factor: its weight in the sum}; 1 for others.
        margins: {factor: its margin in the tree, in standard deviations}; 0 for others.

    Returns:
        `match`: 1 for each judged pair that differs in the match and whose better picture has the higher score.
        `size`: the share of pairs of equal match whose larger things have the higher score, the same number each time.

    Raises:
        ValueError: `labels` is neither.
    """
    factors = [RankedFactorConfig(name=name, margin=(margins or {}).get(name, 0.0)) for name in FACTORS]
    unit = torch.tensor([(scale or {}).get(name, 1.0) for name in FACTORS], dtype=torch.float64)
    first, second = (each * unit for each in factors_of(preferences.samples("factors-train"), factors))
    if labels == "tree":
        least = factor_margins(torch.cat([first, second]), [factor.margin for factor in factors])
        sides = ranked_sides(first, second, least)[0]
    elif labels == "sum":
        weight = torch.tensor([(weights or {}).get(name, 1.0) for name in FACTORS], dtype=torch.float64)
        sides = ((first - second) @ weight).sign()
    else:
        raise ValueError(f"labels is {labels!r}; it is tree or sum")
    everything = pairs_of("factors-train")
    rows = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))[:pairs]
    data = JudgedPairs(everything.chosen, everything.rejected, sides.float()[:, None]).select(rows)
    shape = HeadShape(features=data.chosen.shape[1], hidden=HIDDEN)
    head = train_pair_head(data, shape, RewardTrainingConfig(steps=steps), seed)
    with torch.no_grad():
        ahead = axis_logits(head, pairs_of(f"factors-{on}"))[:, 0].sign()
    gaps = torch.sub(*factors_of(preferences.samples(f"factors-{on}"), factors))
    spread = factor_margins(torch.cat([first, second]) / unit, [LEAST] * len(factors))
    differ = gaps[:, 0].abs() > spread[0]
    tied = (gaps[:, 0] == 0) & (gaps[:, 1].abs() > spread[1])
    match, size = (
        (ahead[kept] == gaps[kept, column].sign()).float() for column, kept in ((0, differ), (1, tied))
    )  # fmt: skip
    return {"match": match.tolist(), "size": [size.mean().item()] * len(match)}
