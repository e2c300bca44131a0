"""Countdown: numbers are to be combined so that the last value is a target, which many calculations do.

`3,5,8>4` is solved by `5+3=8;8*8=4;`: each number is used once, each step goes on from the value before it, and values
are modulo 10. With three different numbers there are 54 calculations, of which about a tenth end with any target.
Splits are `countdown-train` (512), `-development`, `-validation` and `-later` (192 each); the same numbers with the
same target occur in one of them alone, and once. Every puzzle can be solved. `countdown-few` is the beginning of
`countdown-train`, for runs that see each puzzle many times, and `countdown-others` as many that follow.

Demonstrations of training calculate rightly and seldom reach the target: they teach the form alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import permutations, product

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculations import DIGITS, FAMILIES, OPERATORS, Calculation, step
from mmrl_shapeworld.reasoning.traces import steps_of

MODULUS = FAMILIES["sums"].modulus
COUNT = 3
"""The numbers of a puzzle."""
PARTS = {"train": (101, 512), "development": (102, 192), "validation": (103, 192), "later": (103, 384)}
"""Seed and size of each split; `later` is what follows `validation`."""
FEW = 48
"""The size of `countdown-few`, the beginning of `countdown-train`; and of `-others`, what follows it."""
NAMES = tuple(f"countdown-{part}" for part in (*PARTS, "few", "others"))
AIMED = 0.15
"""The share of demonstrations that reach the target on purpose; one in ten of the others does by chance."""
_STEP = re.compile(rf"([0-9])([{re.escape(OPERATORS)}])([0-9])=([0-9]);")


@dataclass(frozen=True)
class Puzzle:
    """Numbers from 1 to 9, and the target that they are to be combined to."""

    numbers: tuple[int, ...]
    target: int

    def __str__(self) -> str:
        return f"{','.join(map(str, self.numbers))}>{self.target}"


def calculations(numbers: Sequence[int]) -> list[Calculation]:
    """Return all calculations with each of the numbers once.

    >>> len(calculations([3, 5, 8]))
    54
    """
    return [
        Calculation(MODULUS, order[0], "".join(operators), tuple(order[1:]))
        for order in dict.fromkeys(permutations(numbers))
        for operators in product(OPERATORS, repeat=len(numbers) - 1)
    ]


def solves(text: str, puzzle: Puzzle) -> bool:
    """Return whether a text is a calculation with the numbers of a puzzle, each once, that ends with its target.

    >>> solves("5+3=8;8*8=4;", Puzzle((3, 5, 8), 4)), solves("5+3=8;8*8=5;", Puzzle((3, 5, 8), 4))
    (True, False)
    """
    steps = [match.groups() for match in _STEP.finditer(text)]
    if not steps or "".join(f"{a}{sign}{b}={value};" for a, sign, b, value in steps) != text:
        return False
    used, value = [int(steps[0][0])], int(steps[0][0])
    for before, operator, number, result in steps:
        if int(before) != value or step(value, operator, int(number), MODULUS) != int(result):
            return False
        used.append(int(number))
        value = int(result)
    return sorted(used) == sorted(puzzle.numbers) and value == puzzle.target


@cache
def puzzles(part: str) -> tuple[Puzzle, ...]:
    """Return the puzzles of a part, always the same."""
    if part in ("few", "others"):
        first = FEW if part == "others" else 0
        return puzzles("train")[first : first + FEW]
    seed, size = PARTS[part]
    rng = np.random.default_rng(seed)
    wanted = "validation" if part == "later" else part
    found: dict[tuple[tuple[int, ...], int], Puzzle] = {}
    while len(found) < size:
        numbers = tuple(int(each) for each in rng.choice(DIGITS, COUNT))
        operators = rng.choice(list(OPERATORS), len(numbers) - 1)
        target = Calculation(MODULUS, numbers[0], "".join(operators), numbers[1:]).answer
        puzzle, key = Puzzle(numbers, target), (tuple(sorted(numbers)), target)
        if _part_of(Puzzle(*key)) == wanted:
            found.setdefault(key, puzzle)
    drawn = tuple(found.values())
    return drawn[PARTS["validation"][1] :] if part == "later" else drawn


def samples(split: str) -> list[Sample]:
    """Return a split as data: the target as `answer`, and the numbers as metadata.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there are no puzzles {split!r}: choose one of {', '.join(NAMES)}")
    part = split.removeprefix("countdown-")
    rng = np.random.default_rng((PARTS.get(part, PARTS["train"])[0], 1))
    return [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=str(puzzle),
            answer=puzzle.target,
            source="countdown",
            demonstration=_demonstration(puzzle, rng) if part == "train" else None,
            metadata={"numbers": list(puzzle.numbers)},
        )
        for number, puzzle in enumerate(puzzles(part))
    ]


def _demonstration(puzzle: Puzzle, rng: np.random.Generator) -> str:
    known = calculations(puzzle.numbers)
    if rng.random() < AIMED:
        known = [each for each in known if each.answer == puzzle.target]
    return "".join(steps_of(known[int(rng.integers(len(known)))]))


def _part_of(puzzle: Puzzle) -> str:
    """Return the split that a puzzle may be in: train (half of all), development or validation."""
    place = blake2b(str(puzzle).encode(), digest_size=1).digest()[0]
    return "train" if place < 128 else "development" if place < 170 else "validation"
