"""Answers with injected errors, critiques that name them, and a reasoner who answers again after a critique (Critic-V).

    3+5*7=<think>3+5=8;8*7=5;</think>5?        what the critic reads: a calculation and an answer to it
    3+5=8;8*7=6;                               its critique: each step of the answer, with the result that it finds
    3+5*7=<think>3+5=8;8*7=5;</think>5?8*7=5;! what the reasoner reads: its prompt has grown by the steps that are named
    <think>3+5=8;8*7=6;</think>6               its second answer

A step is wrong if its result does not follow from what it reads; steps after it go on from the wrong result. A critique
names the steps to which it gives another result, and none of them reads `ok!`: a model of two layers can calculate in
writing, but not compare results that it has not written.
`shapeworld:criticised-train` (2,048) has the critiques of a careless critic as demonstrations, `criticised-development`
(512) and `criticised-validation` (1,024) have none, and `second-answers` (2,048) has the prompts of the reasoner with
the answers of one who believes the critique: the right calculation, or after `ok` the first answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward, RowsReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.rules.reference_likelihood import model_of
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Calculation, part_of, sample_calculation, step
from mmrl_shapeworld.reasoning.traces import NEAR, right_trace

SIZES = {"train": 2048, "development": 512, "validation": 1024}
SECOND = "second-answers"
NAMES = (*(f"criticised-{part}" for part in SIZES), SECOND)
LENGTHS = range(3, 7)
"""Operands of a calculation."""
FINE = "ok"
"""The word that stands for a critique without a named step."""
ERRORS = (0.3, 0.4, 0.3)
"""The shares of answers with no wrong step, with one, and with two."""
MISSED, ALARMS = 0.5, 0.15
"""The shares of wrong steps that the careless critic repeats, and of right ones to which it gives a wrong result."""
_STEP = re.compile(r"(\d+[+*-]\d=)(\d+);")
_SEED = 101


@dataclass(frozen=True)
class Criticised:
    """A calculation, the steps of an answer to it, and those of them that are wrong, by their places."""

    calculation: Calculation
    steps: tuple[str, ...]
    wrong: frozenset[int]

    @property
    def answer(self) -> str:
        """The answer, with its steps as thoughts."""
        return f"<think>{''.join(self.steps)}</think>{self.steps[-1].partition('=')[2][:-1]}"

    @property
    def prompt(self) -> str:
        """The text that the critic reads."""
        return f"{self.calculation}{self.answer}?"


def injected(calculation: Calculation, count: int, rng: np.random.Generator) -> Criticised:
    """Return an answer with `count` wrong steps."""
    wrong = frozenset(rng.permutation(len(calculation.digits))[:count].tolist())
    value, steps = calculation.first, []
    for place, (operator, digit) in enumerate(zip(calculation.operators, calculation.digits, strict=True)):
        result = step(value, operator, digit, calculation.modulus)
        if place in wrong:
            result = (result + NEAR[int(rng.integers(len(NEAR)))]) % calculation.modulus
        steps.append(f"{value}{operator}{digit}={result};")
        value = result
    return Criticised(calculation, tuple(steps), wrong)


def critique(each: Criticised, named: Sequence[int], rng: np.random.Generator | None = None) -> str:
    """Return the critique that gives other results to the steps at these places: the right ones, if they are wrong.

    `rng` draws the results that a right step gets; it may be None where no right step is named.
    """
    modulus = each.calculation.modulus
    text = ""
    for place, written in enumerate(each.steps):
        taken, _, result = written[:-1].partition("=")
        if place in named and place in each.wrong:
            result = str(step(int(taken[:-2]), taken[-2], int(taken[-1]), modulus))
        elif place in named:
            assert rng is not None
            result = str((int(result) + NEAR[int(rng.integers(len(NEAR)))]) % modulus)
        text += f"{taken}={result};"
    return text


def named_steps(text: str, steps: Sequence[str]) -> tuple[str, ...]:
    """Return the steps of an answer to which a critique gives other results, each once.

    Raises:
        InvalidAnswer: the text is not the steps of the answer one after another, each with some result.
    """
    found = _STEP.findall(text)
    taken = [written.partition("=")[0] + "=" for written in steps]
    if "".join(f"{left}{result};" for left, result in found) != text.strip() or [left for left, _ in found] != taken:
        raise InvalidAnswer(f"a critique is {'...;'.join(taken)}...; with a result for each, and not {text!r:.60}")
    other = (written for written, pair in zip(steps, found, strict=True) if written != "{}{};".format(*pair))
    return tuple(dict.fromkeys(other))


def grown(prompt: str, named: Sequence[str]) -> str:
    """Return the reasoner's prompt: the critic's, with the steps behind it that the critique names, or `ok`."""
    return f"{prompt}{''.join(named) or FINE}!"


@cache
def criticised(part: str) -> tuple[Criticised, ...]:
    """Return the answers of a part of the data, always the same; no two parts share a calculation."""
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    found: list[Criticised] = []
    while len(found) < SIZES[part]:
        calculation = sample_calculation(FAMILIES["sums"], rng, LENGTHS)
        if part_of(calculation) == part:
            found.append(injected(calculation, int(rng.choice(len(ERRORS), p=ERRORS)), rng))
    return tuple(found)


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data; `metadata` has the steps of the first answer, its wrong ones and the right value.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    part = "train" if split == SECOND else split.partition("-")[2]
    rng = np.random.default_rng((_SEED, len(SIZES), NAMES.index(split)))
    return [_sample(f"{split}-{number:04d}", each, split, rng) for number, each in enumerate(criticised(part))]


def _sample(id: str, each: Criticised, split: str, rng: np.random.Generator) -> Sample:
    missed, alarms = rng.random(len(each.steps)) < MISSED, rng.random(len(each.steps)) < ALARMS
    named = [place for place in range(len(each.steps)) if (not missed[place] if place in each.wrong else alarms[place])]
    words = [each.steps[place] for place in named]
    metadata: Mapping[str, Any] = {
        "steps": list(each.steps),
        "wrong": [each.steps[place] for place in sorted(each.wrong)],
        "value": each.calculation.answer,
        "first": int(each.answer.rpartition(">")[2]),
    }
    found = Sample(
        id=id,
        prompt=each.prompt,
        answer=critique(each, sorted(each.wrong)),
        source=f"errors-{len(each.wrong)}",
        demonstration=critique(each, named, rng) if split == "criticised-train" else None,
        metadata=metadata,
    )
    if split != SECOND:
        return found
    again = right_trace(each.calculation) if words else f"<think></think>{metadata['first']}"
    return replace(found, prompt=grown(each.prompt, words), answer=metadata["value"], demonstration=again)


class InjectedErrors(Reward):
    """The Jaccard index of the steps that a critique names and the wrong ones, in [0, 1]; 1 for none if all are right.

    Critic-V's rule-based part of the ranking of critiques (arXiv:2411.18203).
    """

    name, needs, range = "injected_errors", ("text", "references.wrong", "references.steps"), (0.0, 1.0)
    source = "|named and wrong| / |named or wrong|"

    def score_one(self, item: RewardInput) -> float:
        named, wrong = set(self.named_by(item)), set(item.references["wrong"])
        return len(named & wrong) / len(named | wrong) if named | wrong else 1.0

    def named_by(self, item: RewardInput) -> tuple[str, ...]:
        """Return the steps that the critique names."""
        return named_steps(item.text or "", item.references["steps"])


class NothingNamed(InjectedErrors):
    """The value of `InjectedErrors` where no critic looks at the answer: nothing is named."""

    def named_by(self, item: RewardInput) -> tuple[str, ...]:
        """Return no steps."""
        return ()


class SecondAnswer(RowsReward):
    """1 if a model of the run answers the calculation right after it has read the critique, else 0.

    A critique out of form is not shown, and the first answer stays.
    """

    name, range = "second_answer", (0.0, 1.0)
    needs = ("text", "references.value", "references.first", "references.steps", "sample")
    source = "1[value of the second answer = value of the calculation]"

    def __init__(self, model: str = "reasoner") -> None:
        self.models = (model,)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all critiques with one call."""
        readable = [(item, named) for item in items if (named := self.named_by(item)) is not None]
        questions = []
        for number, (item, named) in enumerate(readable):
            assert item.sample is not None  # `needs` says so
            questions.append(
                replace(item.sample, id=f"{item.sample.id}/{number}", prompt=grown(item.sample.prompt, named))
            )
        answers = model_of(context, self.models[0]).answers(questions, context.seed) if questions else []
        values = {
            item.id: ending for (item, _), (text,) in zip(readable, answers, strict=True) if (ending := _value(text))
        }
        return [
            float(values.get(item.id, str(item.references["first"])) == str(item.references["value"])) for item in items
        ]

    def named_by(self, item: RewardInput) -> tuple[str, ...] | None:
        """Return the steps that the critique names; None: it is out of form."""
        try:
            return named_steps(item.text or "", item.references["steps"])
        except InvalidAnswer:
            return None


class FirstAnswer(SecondAnswer):
    """The value of `SecondAnswer` without a critic: whether the first answer is right."""

    def named_by(self, item: RewardInput) -> None:
        """Return None: nothing is shown."""
        return None


def _value(text: str) -> str:
    """Return the value that an answer ends with; empty: it has none."""
    return text.rpartition("</think>")[2].strip()
