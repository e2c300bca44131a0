"""Data sets of calculations: `sums-train`, `sums-development`, `sums-validation`, `sums-longer`, and of `remainders`.

`sums-few` is the beginning of `sums-train`, for runs that see each prompt many times. In `sums-mostly-hard`, four of
five prompts have 14 to 20 operands, and the models before training almost never answer them.

Samples name no reward, so that a run sets its own: `rewards: [{name: numeric}]` compares what stands after `</think>`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Calculation, part_of, sample_calculation
from mmrl_shapeworld.reasoning.traces import right_trace

PARTS = {"train": (71, 4096), "development": (72, 1024), "validation": (73, 1024), "longer": (74, 512)}
"""Seed and size of each split. Settings are chosen on development; validation is for results, and longer for results on
more operands than were trained. No prompt of one split occurs in another, and none twice except in train."""
FEW = 256
"""The size of the splits `sums-few` and `remainders-few`, and of `-mostly-hard`."""
HARD_SEED, HARD_RUN = 75, 5
"""In `-mostly-hard`, the first of each five prompts is one of training; the others are drawn with this seed."""
TRAINING = ("train", "few", "mostly-hard")
NAMES = tuple(f"{family}-{part}" for family in FAMILIES for part in dict.fromkeys((*PARTS, *TRAINING)))


@cache
def calculations(split: str) -> tuple[Calculation, ...]:
    """Return the calculations of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    name, _, part = split.partition("-")
    if part == "few":
        return calculations(f"{name}-train")[:FEW]
    if part == "mostly-hard":
        return _mostly_hard(name)
    family, (seed, size) = FAMILIES[name], PARTS[part]
    rng = np.random.default_rng((seed, family.modulus))
    drawn: list[Calculation] = []
    seen: set[Calculation] = set()
    while len(drawn) < size:
        calculation = sample_calculation(family, rng, family.longer if part == "longer" else family.operands)
        if part != "longer" and part_of(calculation) != part:
            continue
        if part == "train" or calculation not in seen:
            drawn.append(calculation)
            seen.add(calculation)
    return tuple(drawn)


def _mostly_hard(name: str) -> tuple[Calculation, ...]:
    family, ordinary = FAMILIES[name], iter(calculations(f"{name}-train"))
    rng = np.random.default_rng((HARD_SEED, family.modulus))
    return tuple(
        sample_calculation(family, rng, family.longest) if place % HARD_RUN else next(ordinary) for place in range(FEW)
    )


def samples(split: str) -> list[Sample]:
    """Return a split as data: the answer as a number, and the number of operands as `source`.

    Training data have the verbose trace without errors as `demonstration`; `metadata` has it as `chain` in all splits.

    Raises:
        KeyError: there is no such split.
    """
    family, _, part = split.partition("-")
    return [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=str(calculation),
            answer=calculation.answer,
            source=f"{family}-{calculation.operands:02d}",
            demonstration=right_trace(calculation) if part in TRAINING else None,
            metadata={"operands": calculation.operands, "chain": right_trace(calculation)},
        )
        for number, calculation in enumerate(calculations(split))
    ]
