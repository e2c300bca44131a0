"""Calculations in two phrasings: `sums-rephrased` has the other one of each prompt as `metadata.rephrased`.

Modulo 10, taking 9 away is adding 1. The other phrasing adds where the first one subtracts and the other way round, so
that every value on the way is the same, and a model that errs in one phrasing may be right in the other: `3-9*7=` is
rephrased as `3+1*7=`.
"""

from __future__ import annotations

from dataclasses import replace

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning import calculation_splits
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.calculations import DIGITS, Calculation, part_of

NAMES = ("sums-rephrased",)
"""Prompts of `sums-train` that have another phrasing, which may be trained on as well."""
_SWAPPED = str.maketrans("+-", "-+")


def rephrased(calculation: Calculation) -> Calculation:
    """Return a calculation in which sums are differences and differences sums; the same one if it has neither.

    >>> str(rephrased(Calculation(10, 3, "-*", (9, 7))))
    '3+1*7='

    Raises:
        ValueError: an operand has no counterpart, since the modulus is not 10.
    """
    if calculation.modulus != DIGITS.stop:
        raise ValueError(f"the counterpart of a digit is a digit modulo 10 alone, not modulo {calculation.modulus}")
    steps = zip(calculation.operators, calculation.digits, strict=True)
    digits = tuple(digit if operator == "*" else calculation.modulus - digit for operator, digit in steps)
    return replace(calculation, operators=calculation.operators.translate(_SWAPPED), digits=digits)


def samples(split: str) -> list[Sample]:
    """Return the split as data, always the same: that of `sums-train`, with the other phrasing as `metadata.rephrased`.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there are no calculations in other words {split!r}: choose one of {', '.join(NAMES)}")
    pairs = zip(calculation_splits.samples("sums-train"), calculations("sums-train"), strict=True)
    found = [
        replace(sample, metadata={**sample.metadata, "rephrased": str(other)})
        for sample, calculation in pairs
        if (other := rephrased(calculation)) != calculation and part_of(other) == "train"
    ]
    return [replace(sample, id=f"{split}-{number:04d}") for number, sample in enumerate(found)]
