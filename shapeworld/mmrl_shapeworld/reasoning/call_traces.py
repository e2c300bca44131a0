"""Demonstrations of calls, real and stitched: `calls-real-train` and `calls-stitched-train`.

A real trace is an episode that the careless caller played to a right answer, with its repairs of calls that failed. A
stitched trace is no episode: it is the text chain of a calculation, one value a step, whose steps are replaced by calls
from the first on, as many as an episode has turns for; the steps that remain are done in the head. Its calls are right,
so it is as true as the other, but it was not acted out: the tool is called for every single step.

    3+5*7-2+6*3=   real       the calls 3+5*7-2 and 4+6*3, then 0
                   stitched   the calls 3+5, 8*7, 6-2 and 4+6, then 0, since 0*3 is done in the head

Both have the calculations of `calls-train` (Yu et al., arXiv:2510.11701, compare traces of these two kinds).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning import calculation_calls
from mmrl_shapeworld.reasoning.calculation_calls import CalculationCalls, calculations, call_of_text
from mmrl_shapeworld.reasoning.calculations import Calculation
from mmrl_shapeworld.reasoning.careless_calls import CARELESS_CALLER, written_episode

REAL, STITCHED = NAMES = ("calls-real-train", "calls-stitched-train")
_SEED = 96


def samples(split: str) -> list[Sample]:
    """Return the calculations of training with the traces of a split as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of traces: choose one of {', '.join(NAMES)}")
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    drawn = calculations("calls-train")
    traces = _real_traces() if split == REAL else [stitched_turns(each, CalculationCalls().max_turns) for each in drawn]
    pairs = zip(calculation_calls.samples("calls-train"), traces, strict=True)
    return tuple(
        replace(sample, id=f"{split}-{number:04d}", demonstration={"turns": turns})
        for number, (sample, turns) in enumerate(pairs)
    )


def stitched_turns(calculation: Calculation, most: int) -> list[str]:
    """Return a call for each step, at most `most` - 1 of them, and the answer."""
    before = (calculation.first, *calculation.values)
    steps = zip(before, calculation.operators, calculation.digits, strict=False)
    calls = [call_of_text(f"{value}{operator}{digit}") for value, operator, digit in steps]
    return [*calls[: most - 1], str(calculation.answer)]


def _real_traces() -> list[list[str]]:
    """Return for each calculation the first episode of the careless caller that ends with the right answer."""
    rng = np.random.default_rng(_SEED)
    environment, reader = CalculationCalls(), MediaReader(MediaBudget())
    traces = []
    for sample, calculation in zip(calculation_calls.samples("calls-train"), calculations("calls-train"), strict=True):
        turns: list[str] = []
        while not turns or turns[-1] != str(calculation.answer):
            turns = written_episode(sample, calculation, CARELESS_CALLER, environment, reader, rng).turns
        traces.append(turns)
    return traces
