"""Calculations by two kinds of authors: most calculate from left to right, the others take the product first.

`3+5*7=` is 6 modulo 10 to the first, and 8 to the others. A prompt does not tell its author, so that whoever always
calculates in one way is wrong about the prompts of the others, and whoever takes either way now and then is right about
each prompt once in a few attempts. All prompts have three or four operands, and one product, after the first step,
which matters for the answer.

The splits are `sums-conventions-train`, `-development`, `-validation` and `-later`, for studies that have decided on
validation, and `sums-conventions-habitual`, with the prompts of training and demonstrations whose value after the
subtraction of 8 or 9 is one too high.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Calculation, part_of, sample_calculation, step
from mmrl_shapeworld.reasoning.traces import CLEAN, HABITUAL, Writer, careless_value

LENGTHS = (3, 4)
"""The numbers of operands."""
PRODUCT_FIRST = 0.35
"""The share of the authors who take the product first."""
PARTS = {"train": (101, 2048), "development": (102, 256), "validation": (103, 512), "later": (105, 512)}
"""Seed and size of each split. No prompt of one split occurs in another."""
HABITUAL_SEED = 104
PREFIX = "sums-conventions-"
NAMES = (*(f"{PREFIX}{part}" for part in PARTS), f"{PREFIX}habitual")


class AuthoredCalculation(NamedTuple):
    """A calculation, and whether its author takes the product first."""

    calculation: Calculation
    product_first: bool

    def chain(self, writer: Writer, rng: np.random.Generator) -> tuple[str, list[int]]:
        """Return a writer's steps in full, and the first number with the value after each step.

        >>> AuthoredCalculation(Calculation(10, 3, "+*", (5, 7)), True).chain(CLEAN, np.random.default_rng(0))
        ('5*7=5;3+5=8;', [3, 5, 8])
        """
        calculation, modulus = self.calculation, self.calculation.modulus
        text, path, value = "", [calculation.first], calculation.first
        steps = list(zip(calculation.operators, calculation.digits, strict=True))
        if self.product_first:
            at = calculation.operators.index("*")
            (operator, factor), (_, other) = steps[at - 1 : at + 1]
            product = factor * other % modulus
            text, path = f"{factor}*{other}={product};", [*path, product]
            steps[at - 1 : at + 1] = [(operator, product)]
        for operator, digit in steps:
            right = step(value, operator, digit, modulus)
            result = careless_value(right, operator, digit, modulus, writer, rng)
            text += f"{value}{operator}{digit}={result};"
            path.append(result)
            value = result
        return text, path


@cache
def calculations(split: str) -> tuple[AuthoredCalculation, ...]:
    """Return the calculations of a split with their authors, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there are no calculations of two conventions {split!r}: choose one of {', '.join(NAMES)}")
    part = split.removeprefix(PREFIX)
    if part == "habitual":
        return calculations(f"{PREFIX}train")
    seed, size = PARTS[part]
    rng = np.random.default_rng(seed)
    of, known = part, set[Calculation]()
    if part == "later":
        of, known = "validation", {each.calculation for each in calculations(f"{PREFIX}validation")}
    found: dict[Calculation, AuthoredCalculation] = {}
    while len(found) < size:
        calculation = sample_calculation(FAMILIES["sums"], rng, LENGTHS)
        if part_of(calculation) != of or calculation in found or calculation in known:
            continue
        if calculation.operators.count("*") != 1 or calculation.operators[0] == "*":
            continue
        authored = AuthoredCalculation(calculation, bool(rng.random() < PRODUCT_FIRST))
        if AuthoredCalculation(calculation, True).chain(CLEAN, rng)[1][-1] != calculation.answer:
            found[calculation] = authored
    return tuple(found.values())


def samples(split: str) -> list[Sample]:
    """Return a split as data, with a chain in full as the demonstration of a prompt of training.

    `source` is the convention, `in-order` or `product-first`; `metadata["path"]` has the first number and the value
    after each step.

    Raises:
        KeyError: there is no such split.
    """
    authored = calculations(split)
    writer = HABITUAL if split.endswith("-habitual") else CLEAN
    rng = np.random.default_rng(HABITUAL_SEED)
    found = []
    for number, each in enumerate(authored):
        _, path = each.chain(CLEAN, rng)
        text, values = each.chain(writer, rng)
        trained = split.endswith(("-train", "-habitual"))
        found.append(
            Sample(
                id=f"{split}-{number:04d}",
                prompt=str(each.calculation),
                answer=path[-1],
                source="product-first" if each.product_first else "in-order",
                demonstration=f"<think>{text}</think>{values[-1]}" if trained else None,
                metadata={"path": [str(value) for value in path]},
            )
        )
    return found
