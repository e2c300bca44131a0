"""Calculations with a tool: short ones can be answered at once, long ones need two calls of `evaluate`.

    3+5=                                                                        8
    3+5*7-2+6*3=     <tool_call>{"name": "evaluate", "arguments": {"text": "3+5*7-2"}}</tool_call>
                     <tool_call>{"name": "evaluate", "arguments": {"text": "4+6*3"}}</tool_call>
                                                                                0

Calculations go from left to right, modulo 10, as in the family `sums`. The model `shapeworld:calls` knows those of two
operands by heart, and guesses long ones, which have five to seven. The tool takes at most four operands. The sample of
a calculation has its wanted calls, so the environment says which calls were redundant.

Splits are `calls-train`, `-development` and `-validation`; half of each is short. Training data have the right episode
as `demonstration`. The short ones of `calls-known-train` and so on add or multiply: without a call, at T = 1, the model
answers 0.75 of these rightly and 0.55 of the subtractions, and almost all of them at lower temperatures.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.environments.call_formats import call_format
from mmrl.environments.tool import CallRejected, Tool, ToolArguments, ToolContext, TypedTool
from mmrl.environments.tool_environment import ToolEnvironment, ToolEpisode
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Calculation, part_of, sample_calculation

SHORT, LONG = range(2, 3), range(5, 8)
"""The numbers of operands of the two halves."""
MOST_OPERANDS = 4
"""The largest number of operands of a call."""
SYMBOLS, GARBLED_LENGTH = "#$%&@^~|?!", 8
"""The symbols of a garbled result, and how many it has."""
PARTS = {"train": (97, 2048), "development": (98, 512), "validation": (99, 512)}
"""Seed and size of each split. Settings are chosen on development; validation is for results."""
KNOWN, KNOWN_SEED = "calls-known-", 10
"""The beginning of the names of splits whose short calculations do not subtract, and what is added to their seeds."""
NAMES = (*(f"calls-{part}" for part in PARTS), *(f"{KNOWN}{part}" for part in PARTS))
_DIGIT = re.compile(r"[0-9]")
_TEXT = re.compile(r"([0-9])((?:[-+*][1-9])*)")


class EvaluateArguments(ToolArguments):
    """A calculation."""

    text: str
    """Digits with + - * between them, such as 3+5*7."""


class Evaluate(TypedTool):
    """Calculate from left to right and return the last digit of the value. At most four numbers."""

    name = "evaluate"
    Arguments = EvaluateArguments

    def run(self, context: ToolContext, arguments: EvaluateArguments) -> Observation:
        """Return the value."""
        calculation = calculation_of(arguments.text)
        if calculation.operands > MOST_OPERANDS:
            raise CallRejected("too long")
        return Observation(str(calculation.answer if calculation.digits else calculation.first))


class CalculationCalls:
    """Calculate with a tool that takes four operands; samples are shapeworld:calls-train."""

    name = "shapeworld_calls"
    instructions = ""  # the model has learned what the tool is
    deadline_s: float | None = None  # calls have deadlines

    def __init__(self, max_turns: int = 5, garbled: float = 0.0) -> None:
        """
        Args:
            max_turns: actions of an episode, the answer included.
            garbled: the share of observations whose text is replaced by symbols that the model has never read. It
                depends on the sample, the turn and its text, so the same call may succeed when it is repeated.

        Raises:
            ConfigError: `garbled` is not in [0, 1].
        """
        if not 0 <= garbled <= 1:
            raise ConfigError(f"{self.name}: garbled is {garbled}; it is a share, from 0 to 1")
        self.max_turns, self.garbled = max_turns, garbled
        self._tools = ToolEnvironment([cast(Tool, Evaluate())], max_turns=max_turns)

    def begin(self, sample: Sample, reader: MediaReader) -> CalculationEpisode:
        """Begin with the calculation, which is the prompt."""
        if not isinstance(sample.answer, int):
            raise DataError(f"sample {sample.id!r}: answer: no whole number: take shapeworld:calls-train")
        return CalculationEpisode(self._tools.begin(sample, reader), sample.answer, sample.id, self.garbled)


class CalculationEpisode:
    """The turns of one row."""

    def __init__(self, episode: ToolEpisode, answer: int, id: str = "", garbled: float = 0.0) -> None:
        self._episode, self._answer = episode, answer
        self._id, self._garbled = id, garbled
        self._turn = 0

    def step(self, action: str | None) -> Step:
        """Carry out the calls of a turn, or take it as the answer; `no_answer` counts one that is no digit."""
        step = self._episode.step(action)
        self._turn += 1
        if step.observation is not None and self._garbled:
            rng = np.random.default_rng(zlib.crc32(f"{self._id} {self._turn} {action}".encode()))
            if rng.random() < self._garbled:
                symbols = "".join(rng.choice(list(SYMBOLS), GARBLED_LENGTH))
                step = replace(step, observation=Observation(call_format("hermes").result(symbols)))
        answer = self._episode.outcome()["answer"]
        if answer is None or _DIGIT.fullmatch(answer.strip()):
            return step
        return replace(step, info={**step.info, "no_answer": 1.0})

    def outcome(self) -> Mapping[str, Any]:
        """Return the outcome of an episode with tools, and `success`: whether the answer is the right digit alone."""
        found = self._episode.outcome()
        written = found["answer"]
        return {**found, "success": written is not None and written.strip() == str(self._answer)}


def calculation_of(text: str) -> Calculation:
    """Return the calculation of a text such as 3+5*7.

    Raises:
        CallRejected: it is none.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise CallRejected("no calculation")
    first, rest = found.groups()
    return Calculation(10, int(first), rest[::2], tuple(int(digit) for digit in rest[1::2]))


def wanted_texts(calculation: Calculation) -> list[str]:
    """Return the calculations of the calls that a long one needs, in order; a short one needs none."""
    if calculation.operands in SHORT:
        return []
    first = MOST_OPERANDS - 1
    text = str(calculation)[:-1]
    return [text[: 2 * first + 1], f"{calculation.values[first - 1]}{text[2 * first + 1 :]}"]


def call_of_text(text: str) -> str:
    """Return a call of the tool, as the model writes it."""
    return call_format("hermes").write("evaluate", {"text": text}).replace("\n", "")


@cache
def calculations(split: str) -> tuple[Calculation, ...]:
    """Return the calculations of a split, always the same: one after another short and long.

    Short ones come again and again, since there are 270 of them.

    Raises:
        KeyError: there is no such split.
    """
    part = split.rpartition("-")[2]
    seed, size = PARTS[part]
    known = split.startswith(KNOWN)
    seed += KNOWN_SEED if known else 0
    rng = np.random.default_rng(seed)
    drawn: list[Calculation] = []
    while len(drawn) < size:
        calculation = sample_calculation(FAMILIES["sums"], rng, lengths_of(len(drawn)))
        if known and calculation.operators == "-":
            continue
        if part_of(calculation) == part:
            drawn.append(calculation)
    return tuple(drawn)


def lengths_of(number: int) -> Sequence[int]:
    """Return the numbers of operands that a calculation of this place may have."""
    return LONG if number % 2 else SHORT


def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    found = []
    for number, calculation in enumerate(calculations(split)):
        texts = wanted_texts(calculation)
        turns = [*(call_of_text(text) for text in texts), str(calculation.answer)]
        found.append(
            Sample(
                id=f"{split}-{number:04d}",
                prompt=str(calculation),
                answer=calculation.answer,
                source="calls-long" if texts else "calls-short",
                demonstration={"turns": turns} if split.endswith("train") else None,
                metadata={"calls": [{"name": "evaluate", "arguments": {"text": text}} for text in texts]},
            )
        )
    return found
