"""Calculations without the steps that a writer with a habit gets wrong, for training that never meets them.

A hard step subtracts 8 or 9. The prompts of `sums-without-hard` are those of `sums-train` that have none: a model with
the habit is right about nearly all of them, and a reward of right answers says nothing about the habit. One in four
prompts of the other splits has such a step.
"""

from __future__ import annotations

from dataclasses import replace

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning import calculation_splits
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.calculations import Calculation
from mmrl_shapeworld.reasoning.traces import HARD_DIGITS

NAMES = ("sums-without-hard",)


def samples(split: str) -> list[Sample]:
    """Return a split as data, always the same, with the traces without errors as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there are no calculations without hard steps {split!r}: choose one of {', '.join(NAMES)}")
    pairs = zip(calculation_splits.samples("sums-train"), calculations("sums-train"), strict=True)
    found = [sample for sample, calculation in pairs if not hard_steps(calculation)]
    return [replace(sample, id=f"{split}-{number:04d}") for number, sample in enumerate(found)]


def hard_steps(calculation: Calculation) -> int:
    """Return the number of steps that subtract 8 or 9.

    >>> hard_steps(Calculation(10, 3, "+-", (9, 8)))
    1
    """
    steps = zip(calculation.operators, calculation.digits, strict=True)
    return sum(operator == "-" and digit in HARD_DIGITS for operator, digit in steps)
