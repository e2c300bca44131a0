"""Written answers to calculations: directly, with the value of each step, or with each step in full.

    <think></think>6                     direct
    <think>8 6</think>6                  concise
    <think>3+5=8;8*7=6;</think>6         verbose

A careless writer makes errors on the way, corrects some of them after `wait`, sometimes begins anew after `wait`, and
sometimes answers something else than the last value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mmrl_shapeworld.reasoning.calculations import Calculation, step

WAIT = "wait"
HARD_DIGITS = (8, 9)
"""A careless writer has a habit of subtracting these wrongly."""
NEAR = (-3, -2, -1, 1, 2, 3)
"""The errors of a step."""


@dataclass(frozen=True)
class Writer:
    """The shares of styles and of errors of whoever writes the traces; all are probabilities."""

    direct: float = 0.45
    concise: float = 0.30
    """The remaining traces are verbose."""
    step_error: float = 0.0
    """The value of a step is off by one to three."""
    subtraction_error: float = 0.0
    """The value after the subtraction of 8 or 9 is one too high: a habit, so greedy decoding has it as well."""
    corrected: float = 0.0
    """Share of wrong steps of verbose traces that a `wait` and the right step follow."""
    second_attempt: float = 0.0
    """Share of verbose traces that a `wait` and another attempt at all steps follow."""
    answer_slip: float = 0.0
    """The answer differs from the last value."""
    direct_error: float = 0.0
    """A direct answer is wrong."""
    repeated: float = 0.0
    """Share of second turns that repeat the answer of the first, without a calculation."""


CLEAN = Writer()
CARELESS = Writer(
    direct=0.4,
    step_error=0.1,
    subtraction_error=0.5,
    corrected=0.4,
    second_attempt=0.08,
    answer_slip=0.05,
    direct_error=0.4,
)
RETRYING = Writer(
    direct=0.0,
    concise=0.5,
    step_error=0.1,
    subtraction_error=0.5,
    corrected=0.4,
    answer_slip=0.05,
    repeated=0.75,
)
"""The careless writer in a second turn, who mostly repeats the answer of the first."""
HABITUAL = Writer(direct=0.0, concise=0.0, subtraction_error=1.0)
"""A writer in full who always has the habit, and makes no other error: good, and wrong in one way."""
TEACHER = Writer(direct=0.0, concise=0.5)
"""Whoever shows how to check an answer: by calculating without errors, half of the time in full."""


def right_trace(calculation: Calculation) -> str:
    """Return the verbose trace without errors."""
    return _closed("".join(steps_of(calculation)), calculation.answer)


def steps_of(calculation: Calculation) -> list[str]:
    """Return the steps of the verbose trace without errors, as in `3+5=8;`."""
    before = (calculation.first, *calculation.values)
    steps = zip(before, calculation.operators, calculation.digits, calculation.values, strict=False)
    return [f"{value}{operator}{digit}={result};" for value, operator, digit, result in steps]


def written_trace(calculation: Calculation, writer: Writer, rng: np.random.Generator) -> str:
    """Return a trace of a writer."""
    style = rng.random()
    if style < writer.direct:
        wrong = rng.random() < writer.direct_error
        return _closed("", _other(calculation.answer, calculation.modulus, rng) if wrong else calculation.answer)
    verbose = style >= writer.direct + writer.concise
    thoughts, value = _attempt(calculation, writer, verbose, rng)
    if verbose and rng.random() < writer.second_attempt:
        again, value = _attempt(calculation, writer, verbose, rng)
        thoughts += WAIT + again
    if rng.random() < writer.answer_slip:
        value = _other(value, calculation.modulus, rng)
    return _closed(thoughts, value)


def style_within(operands: int, budget: int, writer: Writer) -> Writer:
    """Return a writer of the fullest style whose traces of that many operands have at most `budget` tokens.

    A direct answer has 4 tokens, its end token included, a concise one 3 more than operands, and a verbose one 6 for
    each operand less 2; a direct answer is written where nothing fits.
    """
    if 6 * operands - 2 <= budget:
        return replace(writer, direct=0.0, concise=0.0)
    return replace(writer, direct=0.0, concise=1.0) if operands + 3 <= budget else replace(writer, direct=1.0)


def second_turn(first: str, calculation: Calculation, writer: Writer, rng: np.random.Generator) -> str:
    """Return the answer of a writer who has answered `first` and reads a request to try again."""
    if rng.random() < writer.repeated:
        return f"<think></think>{first.partition('</think>')[2]}"
    return written_trace(calculation, writer, rng)


def _attempt(
    calculation: Calculation, writer: Writer, verbose: bool, rng: np.random.Generator
) -> tuple[str, int]:  # the thoughts, and the value that they end with
    value, steps = calculation.first, []
    for operator, digit in zip(calculation.operators, calculation.digits, strict=True):
        right = step(value, operator, digit, calculation.modulus)
        result = careless_value(right, operator, digit, calculation.modulus, writer, rng)
        if verbose:
            steps.append(f"{value}{operator}{digit}={result};")
            if result != right and rng.random() < writer.corrected:
                result = right
                steps.append(f"{WAIT}{value}{operator}{digit}={result};")
        else:
            steps.append(str(result))
        value = result
    return ("" if verbose else " ").join(steps), value


def careless_value(
    right: int, operator: str, digit: int, modulus: int, writer: Writer, rng: np.random.Generator
) -> int:
    if operator == "-" and digit in HARD_DIGITS and rng.random() < writer.subtraction_error:
        return (right + 1) % modulus
    if rng.random() < writer.step_error:
        return (right + NEAR[int(rng.random() * len(NEAR))]) % modulus
    return right


def _other(value: int, modulus: int, rng: np.random.Generator) -> int:
    return (value + 1 + int(rng.random() * (modulus - 1))) % modulus


def _closed(thoughts: str, answer: int) -> str:
    return f"<think>{thoughts}</think>{answer}"
