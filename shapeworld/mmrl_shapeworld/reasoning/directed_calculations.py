"""Calculations whose prompts say how much a right answer and how much a short one counts, and an experiment with them.

`remainders-directed` has the prompts of `remainders-train`, each with one of seven directions, as in `97, 26;90+9-5=`:
97 % right and 26 % short, at an angle of 15 degrees. Its rewards are `numeric` and `length` with the weights of the
direction; its demonstration is a careless writer's trace, which knows nothing of directions: for a warm start that
reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from mmrl.data.directions import directed_samples, direction_of_angle, with_direction
from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.reasoning import calculation_splits
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.traces import CARELESS, written_trace

if TYPE_CHECKING:
    from mmrl.understanding.vlm_policy import VLMPolicy

NAMES = ("remainders-directed", "remainders-undirected")
"""In `remainders-undirected` the prompts say the same, and the rewards are those of 45 degrees for all."""
REWARDS = (RewardChoice("numeric"), RewardChoice("length", args={"limit": 4, "slack": 16}))
"""A direct answer of 4 tokens has the length reward 1, one of 20 tokens 0; few direct answers are right."""
TEXT, ANGLES, _SEED = "{values};", 7, 95
Score = Literal["directional", "scalar"]
SPLIT = {"directional": "remainders-directed", "scalar": "remainders-undirected"}


def samples(split: str) -> list[Sample]:
    """Return a split as data, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there are no calculations with directions {split!r}: choose one of {', '.join(NAMES)}")
    rng = np.random.default_rng(_SEED)
    traces = [written_trace(each, CARELESS, rng) for each in calculations("remainders-train")]
    plain = calculation_splits.samples("remainders-train")
    found = directed_samples(plain, REWARDS, ANGLES, TEXT, _SEED)
    if split == "remainders-undirected":
        fixed = with_direction(plain[0], REWARDS, direction_of_angle(45)).rewards
        found = [replace(sample, rewards=fixed) for sample in found]
    pairs = zip(found, traces, strict=True)
    return [
        replace(sample, id=f"{split}-{number:04d}", demonstration=trace) for number, (sample, trace) in enumerate(pairs)
    ]


def directed_answers(
    seed: int,
    on: str,
    angle: float,
    score: Score = "directional",
    warm: int = 30,
    iterations: int = 60,
    lr: float = 5e-4,
    prompts: int = 256,
) -> dict[str, Sequence[float]]:
    """Answer calculations whose prompts all have one direction, after imitation of the best answers in each direction.

    Args:
        seed: of the training and of the answers.
        on: the prompts, development or validation.
        angle: the direction in the prompts, in degrees: 0 asks for right answers, 90 for short ones.
        score: `directional`: the best answer of a group is that with the highest score in its prompt's direction.
            `scalar`: with the highest score at 45 degrees, for the same prompts.
        warm: iterations of imitation of careless traces before that, 16 each.
        iterations: iterations of rejection sampling, 128 answers each, one of eight of which is imitated.
        lr: the learning rate.
        prompts: the number of prompts.

    Returns:
        `right`, 1 for a right answer, and `tokens`, its length.
    """
    from mmrl_shapeworld.reasoning.trained_sums import answered

    rewards = [replace(each) for each in REWARDS]
    directed = [
        with_direction(sample, rewards, direction_of_angle(angle), TEXT)
        for sample in calculation_splits.samples(f"remainders-{on}")[:prompts]
    ]
    return answered(_trained(score, seed, warm, iterations, lr), directed, seed)


@cache
def _trained(score: Score, seed: int, warm: int, iterations: int, lr: float) -> VLMPolicy:
    from mmrl_shapeworld.reasoning.trained_sums import trained_policy

    return trained_policy(
        f"data.path=shapeworld:{SPLIT[score]}",
        f"seed={seed}",
        f"optimizer.lr={lr}",
        "algorithm={name: rejection_sft}",
        f"pretraining.iterations={warm}",
        f"training.iterations={warm + iterations}",
        "rewards=[]",
        "data.groups=16",
        "policy.model=shapeworld:remainders",
        "sampling.max_new_tokens=64",
    )
