"""Calculations whose prompts say how much a worked and how much a short answer counts, and an experiment with them.

`sums-directed` has the prompts of `sums-train`, each with one of seven directions: in the place of `=` there is a
number after a space, from 0 for worked answers alone, at 0 degrees, to 6 for short ones alone, at 90. Its rewards are
`numeric`, `path_coverage` and `length` with the weights of the direction; its demonstration is a careless writer's
trace, which knows nothing of directions: for a warm start that reads the numbers. Weights in front of a prompt, as in
`97, 26;9+9-5=`, move all of its tokens, after which these small models calculate nothing right, and letters, which they
never read, have nearly the same embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from mmrl.data.directions import direction_of_angle, with_direction
from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.reasoning import calculation_splits
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.traces import CARELESS, written_trace

if TYPE_CHECKING:
    from mmrl.understanding.vlm_policy import VLMPolicy

NAMES = ("sums-directed", "sums-undirected")
"""In `sums-undirected` the prompts say the same, and the rewards are those of 45 degrees for all."""
REWARDS = (
    RewardChoice("numeric"),
    RewardChoice("path_coverage"),
    RewardChoice("length", args={"limit": 4, "slack": 30}),
)
"""A right number, a chain that leads to it, and a short answer. With steps in full the chain is worth most, with values
alone three quarters of that, and nothing in a direct answer, which is seldom right and shortest."""
DIRECTIONS, _SEED = 7, 95
"""The number of directions, which are evenly spaced."""
UPDATES = 8
"""Updates of a pass over the answers of a round."""
Score = Literal["directional", "scalar"]
SPLIT = {"directional": "sums-directed", "scalar": "sums-undirected"}


def samples(split: str) -> list[Sample]:
    """Return a split as data, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there are no calculations with directions {split!r}: choose one of {', '.join(NAMES)}")
    rng = np.random.default_rng(_SEED)
    traces = [written_trace(each, CARELESS, rng) for each in calculations("sums-train")]
    plain = calculation_splits.samples("sums-train")
    chosen = np.random.default_rng(_SEED).integers(DIRECTIONS, size=len(plain)).tolist()
    found = [directed(sample, 90 * place / (DIRECTIONS - 1)) for sample, place in zip(plain, chosen, strict=True)]
    if split == "sums-undirected":
        fixed = directed(plain[0], 45).rewards
        found = [replace(sample, rewards=fixed) for sample in found]
    pairs = zip(found, traces, strict=True)
    return [
        replace(sample, id=f"{split}-{number:04d}", demonstration=trace) for number, (sample, trace) in enumerate(pairs)
    ]


def directed(sample: Sample, angle: float) -> Sample:
    """Return a calculation whose last sign and rewards are those of the direction nearest to an angle in degrees.

    >>> directed(Sample(id="0", prompt="9+9-5="), 30).prompt
    '9+9-5 2'
    """
    place = round(angle * (DIRECTIONS - 1) / 90)
    worked, short = direction_of_angle(90 * place / (DIRECTIONS - 1))
    weighted = with_direction(sample, REWARDS, (worked / math.sqrt(2), worked / math.sqrt(2), short), text="")
    return replace(weighted, prompt=f"{sample.prompt.removesuffix('=')} {place}")


def directed_answers(
    seed: int,
    on: str,
    angle: float,
    score: Score = "directional",
    warm: int = 1,
    rounds: int = 2,
    lr: float = 1e-3,
    groups: int = 256,
    group_size: int = 8,
    epochs: int = 10,
    prompts: int = 256,
) -> dict[str, Sequence[float]]:
    """Answer calculations whose prompts all have one direction, after imitation of the best answers in each direction.

    A round draws all of its answers from the policy before it, as in the paper: answers that are drawn after every
    update drift to what most directions prefer, before the policy has learnt to read a direction.

    Args:
        seed: of the training and of the answers.
        on: the prompts, development or validation.
        angle: the direction in the prompts, in degrees: 0 asks for worked answers, 90 for short ones.
        score: `directional`: the best answer of a group is that with the highest score in its prompt's direction.
            `scalar`: with the highest score at 45 degrees, for the same prompts.
        warm: rounds of imitation of careless traces before that, which show what a prompt with a direction looks like.
        rounds: rounds of rejection sampling.
        lr: the learning rate.
        groups: prompts of a round, each with one answer to imitate.
        group_size: answers to a prompt, the best of which is imitated.
        epochs: passes over the answers of a round, and over the traces of the warm start.
        prompts: the number of prompts that are answered.

    Returns:
        `right`, 1 for a right answer, and `tokens`, its length.
    """
    from mmrl_shapeworld.reasoning.trained_sums import answered

    found = [directed(sample, angle) for sample in calculation_splits.samples(f"sums-{on}")[:prompts]]
    return answered(_trained(score, seed, warm, rounds, lr, groups, group_size, epochs), found, seed)


@cache
def _trained(
    score: Score, seed: int, warm: int, rounds: int, lr: float, groups: int, group_size: int, epochs: int
) -> VLMPolicy:
    from mmrl_shapeworld.reasoning.trained_sums import trained_policy

    return trained_policy(
        f"data.path=shapeworld:{SPLIT[score]}",
        f"seed={seed}",
        f"optimizer.lr={lr}",
        "algorithm={name: rejection_sft, aggregate: sequence}",
        f"pretraining.iterations={warm}",
        f"training.iterations={warm + rounds}",
        f"training.updates={UPDATES}",
        f"training.epochs={epochs}",
        "rewards=[]",
        f"data.groups={groups}",
        f"data.group_size={group_size}",
        f"data.micro_batch={groups * group_size // (4 * UPDATES)}",
        "sampling.max_new_tokens=64",
    )
