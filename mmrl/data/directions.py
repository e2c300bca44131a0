"""Prompts that say how much each reward counts: directional preference alignment (DPA, arXiv:2402.18571).

    directed = directed_samples(samples, [RewardChoice("maths"), RewardChoice("length", args={"limit": 200})], angles=7)

Each sample gets a direction, a unit vector with an entry for each reward. Its prompt begins with the direction, and
its rewards are weighted by it, so that the total of an answer is its score in that direction. A policy that learns from
such samples, by `rejection_sft` as in the paper or by any other algorithm, is steered by the prompt when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError

TEXT = "Weights of {names}: {values}.\n"
"""The beginning of a prompt; `values` are the entries of the direction, in percent."""


def direction_of_angle(degrees: float) -> tuple[float, float]:
    """Return the unit vector of two rewards at an angle: 0 degrees is the first alone, 90 the second alone.

    >>> direction_of_angle(0.0)
    (1.0, 0.0)
    """
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def with_direction(
    sample: Sample, rewards: Sequence[RewardChoice], direction: Sequence[float], text: str = TEXT
) -> Sample:
    """Return a sample whose prompt begins with a direction, and whose rewards are weighted by it.

    Args:
        sample: one with a `prompt`.
        rewards: K of them; their own weights are factors, which bring their values to one scale.
        direction: K numbers that are 0 or above, of length 1.
        text: what is put before the prompt; `{names}` are the rewards and `{values}` the direction in percent.

    Raises:
        DataError: the sample has a conversation in the place of a prompt, or the direction is no unit vector with an
            entry of 0 or above for each reward.
    """
    if not sample.prompt:
        raise DataError(f"sample {sample.id!r}: a direction is put before a prompt, and it has none")
    norm = math.sqrt(sum(value**2 for value in direction))
    if len(direction) != len(rewards) or min(direction) < 0 or not math.isclose(norm, 1.0, abs_tol=1e-6):
        raise DataError(
            f"direction {tuple(direction)}: expected a vector of length 1 with {len(rewards)} entries of 0 or above, "
            "one for each reward"
        )
    begin = text.format(
        names=", ".join(each.name for each in rewards), values=", ".join(f"{100 * value:.0f}" for value in direction)
    )
    named = {each.name: value for each, value in zip(rewards, direction, strict=True)}
    weighted = [replace(each, weight=each.weight * value) for each, value in zip(rewards, direction, strict=True)]
    return replace(
        sample,
        prompt=begin + sample.prompt,
        rewards=tuple(weighted),
        metadata={**sample.metadata, "direction": named},
    )


def directed_samples(
    samples: Sequence[Sample], rewards: Sequence[RewardChoice], angles: int = 7, text: str = TEXT, seed: int = 0
) -> list[Sample]:
    """Return samples, each with one of several directions of two rewards, drawn by chance.

    Args:
        samples: those to direct.
        rewards: the two rewards.
        angles: the number of directions, evenly spaced from the first reward alone to the second alone; few, since
            samples of one direction are scored together.
        text: as of `with_direction`.
        seed: of the choice.

    Raises:
        DataError: as `with_direction`, or there are not two rewards or fewer than two angles.
    """
    if len(rewards) != 2 or angles < 2:
        raise DataError(
            f"expected two rewards and at least two angles between them, got {len(rewards)} and {angles}; for more "
            "rewards give each sample a direction by with_direction"
        )
    vectors = [direction_of_angle(90 * number / (angles - 1)) for number in range(angles)]
    chosen = np.random.default_rng(seed).integers(angles, size=len(samples))
    return [
        with_direction(sample, rewards, vectors[number], text)
        for sample, number in zip(samples, chosen.tolist(), strict=True)
    ]
