"""Pairs of answers to sums that two raters judge: one prefers right answers, the other short ones.

`trade-pairs-train`, `-development` and `-validation`, with prompts of the split of `sums` of that name. Both answers
are a careless writer's; one of them is right, and they differ in length. `chosen` is the right one, and `metadata.axes`
says which is better on each axis: `right` and `brief`, as in `{"right": "chosen", "brief": "rejected"}`, and `sum`, by
the sum of both rewards: a right answer is worth `WORTH` characters.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.answer_pairs import is_right
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.traces import CARELESS, written_trace

SIZES = {"train": 1024, "development": 512, "validation": 512}
"""Pairs of each set."""
NAMES = tuple(f"trade-pairs-{part}" for part in SIZES)
WORTH = 12
"""The characters by which a right answer may be longer than a wrong one, and still be the better one in sum."""
_SEED = 94


@cache
def _samples(part: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    prompts = calculations(f"sums-{part}")
    found: list[Sample] = []
    drawn = 0
    while len(found) < SIZES[part]:
        calculation = prompts[drawn % len(prompts)]
        drawn += 1
        right, wrong = sorted((written_trace(calculation, CARELESS, rng) for _ in range(2)),
                              key=lambda trace: not is_right(trace, calculation))  # fmt: skip
        if not is_right(right, calculation) or is_right(wrong, calculation) or len(right) == len(wrong):
            continue
        found.append(
            Sample(
                id=f"trade-pairs-{part}-{len(found):04d}",
                prompt=str(calculation),
                answer=str(calculation.answer),
                chosen=right,
                rejected=wrong,
                source=f"sums-{calculation.operands:02d}",
                metadata={"axes": axes_of(len(right) - len(wrong))},
            )
        )
    return tuple(found)


def samples(split: str) -> list[Sample]:
    """Return a set as data, always the same.

    Raises:
        KeyError: there is no such set.
    """
    if split not in NAMES:
        raise KeyError(f"there are no pairs with two raters {split!r}: choose one of {', '.join(NAMES)}")
    return list(_samples(split.removeprefix("trade-pairs-")))


def axes_of(longer: int) -> dict[str, str]:
    """Return which answer of a pair is better on each axis, if the chosen, right one is that many characters longer.

    >>> axes_of(5), axes_of(20)["sum"]
    ({'right': 'chosen', 'brief': 'rejected', 'sum': 'chosen'}, 'rejected')
    """
    return {
        "right": "chosen",
        "brief": "chosen" if longer < 0 else "rejected",
        "sum": "chosen" if longer < WORTH else "rejected",
    }
