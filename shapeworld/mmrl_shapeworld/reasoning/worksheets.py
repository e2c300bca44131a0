"""Tables of ten calculations, of which one answer can fill in a few rows: the others are left for the answers after it.

    *7:4?;2?;0?;3?;    2*7=4;3*7=1;    *7:4?;2 4;0?;3 1;

The prompt has an operator and a digit for all rows, and the first number of each row in any order. An answer is a list
of calculations; the value of each that has a row is entered there, also over a value that the row has already, and the
table with these values is what the next answer reads. Nothing says which values are right. Splits are
`worksheets-train`, `-development` and `-validation`, all with blank tables. The demonstration of a training sample
fills in two rows anywhere, as carelessly as the models of sums calculate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np

from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.reasoning.calculations import DIGITS, FAMILIES, OPERATORS, step
from mmrl_shapeworld.reasoning.traces import CARELESS, careless_value

PARTS = {"train": (131, 2048), "development": (132, 512), "validation": (133, 512)}
"""Seed and size of each split. Settings are chosen on development; validation is for results. The order of rows differs
from sample to sample, and no two have the same prompt; the 27 pairs of an operator and a digit occur in all splits."""
NAMES = tuple(f"worksheets-{part}" for part in PARTS)
DEMONSTRATED = 2
"""The rows that a demonstration fills in."""
BLANK = "?"
_MODULUS = FAMILIES["sums"].modulus
_ROW = re.compile(rf"([0-9])({re.escape(BLANK)}| [0-9]);")
_CALCULATION = re.compile(rf"([0-9])([{re.escape(OPERATORS)}][1-9])=([0-9]);")


def entered(prompt: str, answer: str) -> str:
    """Return the table with the values of an answer; of several for a row the last one counts.

    >>> entered("*7:4?;2?;0 3;", "2*7=4;0*7=0;3*7=1;4+7=1;4*7=")
    '*7:4?;2 4;0 0;'
    """
    shared, _, rows = prompt.partition(":")
    values = {first: f" {value}" for first, rest, value in _CALCULATION.findall(answer) if rest == shared}
    return f"{shared}:" + "".join(f"{first}{values.get(first, mark)};" for first, mark in _ROW.findall(rows))


def right_share(prompt: str) -> float:
    """Return the share of a table's rows with the right value."""
    shared, _, rows = prompt.partition(":")
    found = _ROW.findall(rows)
    return sum(mark == f" {_value(int(first), shared)}" for first, mark in found) / len(found)


class WorksheetShare(Reward):
    """The share of a table's rows that have the right value once an answer is entered, in [0, 1]."""

    name, needs, range = "worksheet_share", ("text", "prompt"), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        """Enter the answer, and count."""
        return right_share(entered(item.prompt, item.text or ""))


class FilledSheets(Proposer):
    """A proposer of tables with the values of an answer of the policy: the next answer goes on from there."""

    reads_answers: ClassVar[bool] = True

    def __init__(self, max_depth: int = 2) -> None:
        """`max_depth` is the most answers that a table has values of; it is 1 or more."""
        if max_depth < 1:
            raise ValueError(f"max_depth is {max_depth}; it is 1 or more")
        self._max_depth = max_depth

    def wanted_answer(
        self, sample: Sample, depth: int, totals: Sequence[float], rng: np.random.Generator
    ) -> int | None:
        """Return the place of a random answer, unless the table has the values of `max_depth` answers."""
        return super().wanted_answer(sample, depth, totals, rng) if depth < self._max_depth else None

    def propose(self, parent: Parent, rng: np.random.Generator) -> Sample:
        """Return the table with the values of the parent's answer."""
        return replace(parent.sample, prompt=entered(parent.sample.prompt, str(parent.answer)))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    part = split.partition("-")[2]
    seed, size = PARTS[part]
    rng, found = np.random.default_rng(seed), []
    for number in range(size):
        operator, digit = OPERATORS[int(rng.integers(len(OPERATORS)))], int(rng.choice(DIGITS))
        order = rng.permutation(_MODULUS).tolist()
        answer = _careless_answer(operator, digit, rng)
        found.append(
            Sample(
                id=f"{split}-{number:04d}",
                prompt=f"{operator}{digit}:" + "".join(f"{first}{BLANK};" for first in order),
                source="worksheets",
                demonstration=answer if part == "train" else None,
            )
        )
    return tuple(found)


def samples(split: str) -> list[Sample]:
    """Return a split as data: blank tables, with the careless beginning of an answer as `demonstration` for training.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))


def _careless_answer(operator: str, digit: int, rng: np.random.Generator) -> str:
    values = {
        first: step(first, operator, digit, _MODULUS) for first in rng.permutation(_MODULUS)[:DEMONSTRATED].tolist()
    }
    return "".join(
        f"{first}{operator}{digit}={careless_value(right, operator, digit, _MODULUS, CARELESS, rng)};"
        for first, right in values.items()
    )


def _value(first: int, shared: str) -> int:
    return step(first, shared[0], int(shared[1]), _MODULUS)
