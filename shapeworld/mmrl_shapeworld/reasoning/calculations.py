"""Calculations from left to right modulo a number: the prompts of two families, their values and their answers.

`3+5*7=` in the family `sums` is 6: 3 + 5 = 8, 8 * 7 = 56, and 56 modulo 10 is 6. There is no precedence. Each step
needs the value before it, so a network of a few layers cannot give the answer of a long calculation in one token; it
has to write the values down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np

OPERATORS = "+-*"
DIGITS = range(1, 10)
"""The operands after the first."""


@dataclass(frozen=True)
class Family:
    """A family of calculations: the modulus and the numbers of operands."""

    name: str
    modulus: int
    """Values and answers are 0 to modulus - 1."""
    operands: range
    """Numbers of operands of the splits for training, development and validation."""
    longer: range
    """Numbers of operands of the split of longer calculations."""
    longest: range
    """Numbers of operands of calculations that the models before training almost never get right."""


FAMILIES: Mapping[str, Family] = {
    "sums": Family("sums", 10, range(2, 7), range(7, 10), range(14, 21)),
    "remainders": Family("remainders", 97, range(2, 11), range(11, 14), range(14, 21)),
}
"""`sums` has 10 answers. `remainders` has 97, which all stay equally likely, since 97 is prime."""


@dataclass(frozen=True)
class Calculation:
    """A first number, and an operator and a digit for each step."""

    modulus: int
    first: int
    """0 to modulus - 1."""
    operators: str
    """The operator of each step, one of `OPERATORS`."""
    digits: tuple[int, ...]
    """The digit of each step, one of `DIGITS`."""

    def __str__(self) -> str:
        steps = zip(self.operators, self.digits, strict=True)
        return f"{self.first}{''.join(f'{operator}{digit}' for operator, digit in steps)}="

    @property
    def operands(self) -> int:
        """The number of operands: one more than steps."""
        return len(self.digits) + 1

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The value after each step."""
        found, value = [], self.first
        for operator, digit in zip(self.operators, self.digits, strict=True):
            value = step(value, operator, digit, self.modulus)
            found.append(value)
        return tuple(found)

    @property
    def answer(self) -> int:
        """The value after the last step."""
        return self.values[-1]


def step(value: int, operator: str, digit: int, modulus: int) -> int:
    """Return the value after one step.

    >>> step(8, "*", 7, 10), step(3, "-", 9, 97)
    (6, 91)
    """
    results = {"+": value + digit, "-": value - digit, "*": value * digit}
    return results[operator] % modulus


def sample_calculation(family: Family, rng: np.random.Generator, lengths: Sequence[int] | None = None) -> Calculation:
    """Draw a calculation; each number of operands in `lengths` (unset: those of training) is equally likely."""
    lengths = lengths or family.operands
    count, first, *drawn = rng.random(2 * (max(lengths) + 1)).tolist()  # as many for each, so that draws cost one call
    steps = lengths[int(count * len(lengths))] - 1
    operators = "".join(OPERATORS[int(each * len(OPERATORS))] for each in drawn[:steps])
    digits = tuple(DIGITS[int(each * len(DIGITS))] for each in drawn[steps : 2 * steps])
    return Calculation(family.modulus, int(first * family.modulus), operators, digits)


def part_of(calculation: Calculation) -> str:
    """Return the split that a calculation may be in: train (half of all), development or validation (a quarter each).

    It follows from the prompt alone, so no prompt is in two splits, and whoever draws for training avoids the others.
    """
    place = blake2b(str(calculation).encode(), digest_size=1).digest()[0]
    return "train" if place < 128 else "development" if place < 192 else "validation"
