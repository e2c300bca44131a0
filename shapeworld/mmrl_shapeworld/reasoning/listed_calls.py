"""Lists of calculations, each of which is to be handed to a tool, all in one answer: calls without a result.

    3+5*7;2-6;8*9=    <tool_call>{"name": "evaluate", "arguments": {"text": "3+5*7"}}</tool_call>
                      <tool_call>{"name": "evaluate", "arguments": {"text": "2-6"}}</tool_call>
                      <tool_call>{"name": "evaluate", "arguments": {"text": "8*9"}}</tool_call>

The answer of a sample is the list of wanted calls, for the reward `tool_call_match`. Splits are `listed-train`,
`-development` and `-validation`, and `listed-fours-train` and so on, whose lists have four. The demonstration of a
training sample is a careless caller's: calls are left out, digits are mistaken, and `*` mostly becomes `+`. The model
`shapeworld:calls` learns from them, by `pretraining`, to write lists as carelessly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculation_calls import call_of_text
from mmrl_shapeworld.reasoning.calculations import DIGITS, FAMILIES, Calculation, part_of, sample_calculation

PARTS = {"train": (121, 2048), "development": (122, 512), "validation": (123, 512)}
"""Seed and size of each split. Settings are chosen on development; validation is for results."""
CALCULATIONS, OPERANDS = {"listed": range(3, 6), "listed-fours": range(4, 5)}, range(2, 4)
"""The numbers of calculations of the lists of each kind, and of operands of each calculation."""
NAMES = tuple(f"{kind}-{part}" for kind in CALCULATIONS for part in PARTS)
HABIT = ("*", "+")
"""The operator that a careless caller mostly mistakes, and the one that is written."""


@dataclass(frozen=True)
class ListCaller:
    """The habits of whoever writes the calls of a list; all are probabilities."""

    omits: float = 0.0
    """A call is left out."""
    slips: float = 0.0
    """The last digit of a call is another one."""
    habit: float = 0.0
    """An operator `*` of a call is written as `+`."""


CARELESS_LISTS = ListCaller(omits=0.1, slips=0.15, habit=0.7)


@cache
def lists(split: str) -> tuple[tuple[Calculation, ...], ...]:
    """Return the lists of a split, always the same; calculations of one split never occur in another.

    Raises:
        KeyError: there is no such split.
    """
    kind, _, part = split.rpartition("-")
    seed, size = PARTS[part]
    numbers = CALCULATIONS[kind]
    rng = np.random.default_rng(seed if kind == "listed" else (seed, numbers.start))
    drawn = []
    for _ in range(size):
        wanted: list[Calculation] = []
        count = int(rng.integers(numbers.start, numbers.stop))
        while len(wanted) < count:
            calculation = sample_calculation(FAMILIES["sums"], rng, OPERANDS)
            if part_of(calculation) == part:
                wanted.append(calculation)
        drawn.append(tuple(wanted))
    return tuple(drawn)


def text_of(calculation: Calculation) -> str:
    """Return a calculation as the argument of a call, without the sign of equality."""
    return str(calculation)[:-1]


def written_calls(wanted: tuple[Calculation, ...], caller: ListCaller, rng: np.random.Generator) -> str:
    """Return the calls that a caller writes for a list, at least one."""
    found = []
    for calculation in wanted:
        text = text_of(calculation)
        if rng.random() < caller.slips:
            text = f"{text[:-1]}{DIGITS[int(rng.random() * len(DIGITS))]}"
        old, new = HABIT
        text = "".join(new if sign == old and rng.random() < caller.habit else sign for sign in text)
        if rng.random() >= caller.omits:
            found.append(call_of_text(text))
    return "".join(found) or call_of_text(text_of(wanted[0]))


def samples(split: str) -> list[Sample]:
    """Return a split as data: the wanted calls as the answer, the number of them as `source`.

    Raises:
        KeyError: there is no such split.
    """
    rng = np.random.default_rng(PARTS[split.rpartition("-")[2]][0] + 1000)
    return [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=";".join(text_of(each) for each in wanted) + "=",
            answer=[{"name": "evaluate", "arguments": {"text": text_of(each)}} for each in wanted],
            source=f"listed-{len(wanted)}",
            demonstration=written_calls(wanted, CARELESS_LISTS, rng) if split.endswith("train") else None,
        )
        for number, wanted in enumerate(lists(split))
    ]
