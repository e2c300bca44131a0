"""Thoughts of judges of picture pairs: readings of both pictures in some dimensions, then a verdict.

`<think>number 3 2 A;colour red red =;</think>A` reads the first and the second picture, and says which of the two
readings fits the caption, if only one does. A `Judge` without errors is always right; a careless one misreads, leaves
dimensions out, and now and then gives a verdict that its readings contradict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mmrl_shapeworld.worlds.picture_pairs import DIMENSIONS, VALUES, Values

FIRST, SECOND = "A", "B"
OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Judge:
    """The probabilities of a judge's errors."""

    misread: Mapping[str, float] = field(default_factory=dict)
    """By dimension, the probability that one picture is read wrong: a number by one, else any other value."""
    leaves_out: float = 0.0
    """The probability that a dimension is not looked at."""
    contradicts: float = 0.0
    """The probability that the verdict is the other one."""

    def readings(
        self, dimensions: Sequence[str], first: Values, second: Values, rng: np.random.Generator
    ) -> tuple[tuple[str, str, str], ...]:
        """Return what the judge reads: (dimension, of the first picture, of the second), in the order given."""
        kept = [each for each in dimensions if not self.leaves_out or rng.random() >= self.leaves_out]
        return tuple((each, self._read(each, first, rng), self._read(each, second, rng)) for each in kept)

    def verdict(self, fits: Mapping[str, tuple[int, int]], order: Sequence[str], rng: np.random.Generator) -> str:
        """Return the letter of the picture with more fitting readings; without a difference, either one.

        Args:
            fits: by dimension, whether the reading of the first and of the second picture fits the caption, 0 or 1.
            order: dimensions that decide by themselves, the first of them first, before all others are counted.
            rng: for ties and contradictions.
        """
        lead = next((a - b for a, b in (fits[each] for each in order if each in fits) if a != b), 0)
        lead = lead or sum(a - b for a, b in fits.values())
        first = rng.random() < 0.5 if lead == 0 else lead > 0
        if self.contradicts and rng.random() < self.contradicts:
            first = not first
        return FIRST if first else SECOND

    def _read(self, dimension: str, values: Values, rng: np.random.Generator) -> str:
        value, known = values[DIMENSIONS.index(dimension)], VALUES[dimension]
        if rng.random() >= self.misread.get(dimension, 0.0):
            return value
        at = known.index(value)
        near = [n for n in range(len(known)) if (abs(n - at) == 1 if dimension == "number" else n != at)]
        return known[int(rng.choice(near))]


SURE = Judge()
"""The judge without errors."""
CARELESS = Judge({"number": 0.08, "size": 0.06, "colour": 0.04, "shape": 0.08, "place": 0.04}, 0.0, 0.05)
"""The judge whose traces are the demonstrations."""


def listed(readings: Sequence[tuple[str, str, str]]) -> str:
    """Return readings as a text: `number 3 2;colour red red;`."""
    return "".join(f"{name} {first} {second};" for name, first, second in readings)


def weighed(readings: Sequence[tuple[str, str, str]], caption: Values) -> str:
    """Return readings with the letter of the picture that alone fits the caption, or =: `number 3 2 A;`."""
    marks = {(1, 0): FIRST, (0, 1): SECOND}
    fits = fitting(readings, caption)
    return "".join(f"{name} {first} {second} {marks.get(fits[name], '=')};" for name, first, second in readings)


def trace(
    judge: Judge,
    caption: Values,
    pictures: tuple[Values, Values],  # in the order in which they stand
    rng: np.random.Generator,
    dimensions: Sequence[str] = DIMENSIONS,
    order: Sequence[str] = (),
) -> str:
    """Return thoughts about the dimensions and a verdict; `order` is that of `Judge.verdict`."""
    readings = judge.readings(dimensions, *pictures, rng)
    return f"{OPEN}{weighed(readings, caption)}{CLOSE}{judge.verdict(fitting(readings, caption), order, rng)}"


def fitting(readings: Sequence[tuple[str, str, str]], caption: Values) -> dict[str, tuple[int, int]]:
    """Return for each dimension whether the readings of both pictures have the value of the caption, 0 or 1."""
    wanted = dict(zip(DIMENSIONS, caption, strict=True))
    return {name: (int(first == wanted[name]), int(second == wanted[name])) for name, first, second in readings}
