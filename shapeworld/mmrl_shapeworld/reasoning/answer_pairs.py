"""Preferences between answers to sums: two careless answers to a prompt, of which one is right.

`answer-pairs-train`, `-development` and `-validation`, with prompts of the split of `sums` of that name. `answer` is
the right number, for reward models that compare an answer with a reference. In `answer-pairs-short` the prompts have
two or three operands, and in `answer-pairs-direct` all answers are written without thoughts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.calculations import Calculation
from mmrl_shapeworld.reasoning.traces import CARELESS, written_trace

SIZES = {"train": 1024, "development": 512, "validation": 512, "short": 1024, "direct": 1024}
"""Pairs of each set."""
NAMES = tuple(f"answer-pairs-{part}" for part in SIZES)
SHORT = 3
"""The most operands of `answer-pairs-short`."""
_SEED = 92


@cache
def _samples(part: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    writer = replace(CARELESS, direct=1.0, concise=0.0) if part == "direct" else CARELESS
    found: list[Sample] = []
    for calculation in _prompts(part):
        traces = [written_trace(calculation, writer, rng) for _ in range(2)]
        right = [is_right(trace, calculation) for trace in traces]
        if right[0] == right[1]:
            continue
        better = int(right[1])
        found.append(
            Sample(
                id=f"answer-pairs-{part}-{len(found):04d}",
                prompt=str(calculation),
                answer=str(calculation.answer),
                chosen=traces[better],
                rejected=traces[1 - better],
                source=f"sums-{calculation.operands:02d}",
            )
        )
        if len(found) == SIZES[part]:
            break
    return tuple(found)


def samples(split: str) -> list[Sample]:
    """Return a set as data, always the same.

    Raises:
        KeyError: there is no such set.
    """
    if split not in NAMES:
        raise KeyError(f"there are no pairs of answers {split!r}: choose one of {', '.join(NAMES)}")
    return list(_samples(split.removeprefix("answer-pairs-")))


def is_right(trace: str, calculation: Calculation) -> bool:
    """Return whether a trace ends with the right number."""
    return trace.rpartition("</think>")[2] == str(calculation.answer)


def _prompts(part: str) -> Iterator[Calculation]:
    """Yield the calculations of a split again and again."""
    of = calculations(f"sums-{part if part in ('development', 'validation') else 'train'}")
    while True:
        yield from (each for each in of if part != "short" or each.operands <= SHORT)
