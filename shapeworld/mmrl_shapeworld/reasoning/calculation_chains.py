"""Chains of calculations over several turns: an episode is a success if no answer is wrong.

The prompt is the first calculation. A right answer is followed by the next calculation; a wrong one ends the episode.
The model `shapeworld:sums` has never seen a second turn, and so it seldom answers one: rewards are sparse.

Splits are `chains-train`, `-later`, `-development` and `-validation`. In the first two, which are for training, every
second chain has calculations of four to six operands, which the model answers less often still; all others have two.
`chains-solved` and `chains-later-solved` have those of them that this model solved at least once in 16 attempts (`mmrl
data filter`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl.rewards.parsing.numbers import find_number
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Calculation, part_of, sample_calculation

LENGTH = 2
"""Calculations of a chain."""
SHORT, LONG = range(2, 3), range(4, 7)
"""The numbers of operands of the calculations of a chain."""
PARTS = {"train": (91, 64), "development": (92, 256), "validation": (93, 512), "later": (94, 64)}
"""Seed and size of each split. Settings are chosen on development; validation is for results, and so are the chains of
`later`, on which a study trains that is decided on the chains of training."""
TRAINING = ("train", "later")
SOLVED = {"chains-solved": "chains-train", "chains-later-solved": "chains-later"}
"""The splits of solved chains, and those that they are of."""
SOLVED_IDS = Path(__file__).parent / "solved_chains.json"
NAMES = (*(f"chains-{part}" for part in PARTS), *SOLVED)


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    part = split.rpartition("-")[2]
    seed, size = PARTS[part]
    rng = np.random.default_rng(seed)
    found = []
    trains = part in TRAINING
    for number in range(size):
        is_long = trains and number % 2 == 1
        chain: list[Calculation] = []
        while len(chain) < LENGTH:
            calculation = sample_calculation(FAMILIES["sums"], rng, LONG if is_long else SHORT)
            if part_of(calculation) == ("train" if trains else part):
                chain.append(calculation)
        found.append(
            Sample(
                id=f"{split}-{number:04d}",
                prompt=str(chain[0]),
                answer={"calculations": [str(each) for each in chain], "answers": [each.answer for each in chain]},
                source="chains-long" if is_long else "chains-short",
            )
        )
    return tuple(found)


def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    if split in SOLVED:
        solved = set(json.loads(SOLVED_IDS.read_text()))
        return [sample for sample in _samples(SOLVED[split]) if sample.id in solved]
    return list(_samples(split))


class CalculationChains:
    """Answer one calculation after another; samples are shapeworld:chains-train."""

    name = "shapeworld_chains"
    max_turns = LENGTH
    instructions = ""
    deadline_s: float | None = None

    def begin(self, sample: Sample, reader: MediaReader) -> ChainEpisode:
        """Begin with the first calculation, which is the prompt."""
        task = sample.answer
        if not isinstance(task, Mapping) or not {"calculations", "answers"} <= task.keys():
            raise DataError(f"sample {sample.id!r}: answer: no chain of calculations: take shapeworld:chains-train")
        return ChainEpisode([str(each) for each in task["calculations"]], [int(each) for each in task["answers"]])


class ChainEpisode:
    """The answers of one row."""

    def __init__(self, calculations: list[str], answers: list[int]) -> None:
        self._calculations, self._answers = calculations, answers
        self._done = 0
        self._ended: str | None = None

    def step(self, action: str | None) -> Step:
        """Take the number in a turn as the answer to the calculation that was shown last."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        if action is None:
            self._ended = "cut_off"
            return Step(None, {}, {"right": 0.0, "valid": 0.0})
        number = _number(action)
        is_right = number == self._answers[self._done]
        self._done += is_right
        if self._done == len(self._answers):
            self._ended = "success"
        elif not is_right:
            self._ended = "wrong"
        observation = None if self._ended else Observation(self._calculations[self._done])
        return Step(observation, {}, {"right": float(is_right), "valid": float(number is not None)})

    def outcome(self) -> Mapping[str, Any]:
        """Return success, the share of calculations done, and how the episode ended."""
        return {
            "success": self._done == len(self._answers),
            "progress": self._done / len(self._answers),
            "ended": self._ended,
        }


def _number(action: str) -> int | None:
    try:
        value = find_number(answer_text(action), None)
    except InvalidAnswer:
        return None
    return int(value) if value.denominator == 1 else None
