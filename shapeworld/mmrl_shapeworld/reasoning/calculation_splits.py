"""Data sets of calculations: `sums-train`, `sums-development`, `sums-validation`, `sums-longer`, and of `remainders`.

`sums-few` is the beginning of `sums-train`, for runs that see each prompt many times. In `sums-mostly-hard`, four of
five prompts have 14 to 20 operands, and the models before training almost never answer them. `sums-hard`,
`sums-hard-development` and `sums-hard-validation` have the largest three numbers of operands of `sums-train` alone.
Those of `sums-subtractions`, `sums-subtractions-development` and `sums-subtractions-validation` have as many, and at
least four steps subtract 8 or 9. `sums-few-subtractions` is the beginning of them, and `sums-rarely-subtractions` has
these after all of `sums-short`; every fourth prompt of `sums-partly-subtractions` is one of `sums-subtractions`, and
the others are of `sums-train`. Those of `sums-some-subtractions` (and `-development`, `-validation`) have three to five
operands, and one or two steps that subtract 8 or 9, or more by chance. `sums-later-validation` has prompts with the
smallest and the largest two numbers of operands, equally many of each, and none of the first 384 of `sums-validation`:
for studies that were decided on these. `sums-short` has the smallest two, for runs that are tested on more steps than
they were trained on. In `sums-halves`,
`sums-halves-development` and `sums-halves-validation`, two operands are as likely as the largest two numbers of them
together, before prompts that come twice are left out. In `sums-reflections`, demonstrations are episodes of two turns
for the environment `attempts`. In `sums-announced`, every second prompt begins with a budget of tokens, as in
`36;3+5*7=`, and its demonstration is the careless writer's fullest trace within it. In `sums-habitual`, demonstrations
are in full and right, but the value after the subtraction of 8 or 9 is one too high; in `sums-half-habitual`, it is in
half of these steps, and in `sums-mostly-habitual` in seven of ten. In `sums-checked`, only prompts with the smallest
two numbers of operands have an `answer`; in `sums-trusted`, all have one, with the `confidence` 1 for these prompts and
0 for the others. `sums-validation-later` is the second half of `sums-validation`, for studies that have decided on the
first half before. `sums-validation-more` has the 512 prompts that would have come next, and `sums-validation-last` the
512 after these, for those that have decided on earlier ones.

Samples name no reward, so that a run sets its own: `rewards: [{name: numeric}]` compares what stands after `</think>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculations import (
    DIGITS,
    FAMILIES,
    OPERATORS,
    Calculation,
    Family,
    part_of,
    sample_calculation,
)
from mmrl_shapeworld.reasoning.traces import (
    CARELESS,
    HABITUAL,
    HARD_DIGITS,
    TEACHER,
    right_trace,
    steps_of,
    style_within,
    written_trace,
)

PARTS = {"train": (71, 4096), "development": (72, 1024), "validation": (73, 1024), "longer": (74, 512)}
"""Seed and size of each split. Settings are chosen on development; validation is for results, and longer for results on
more operands than were trained. No prompt of one split occurs in another, and none twice except in train."""
LATER = 384
"""The number of prompts of `sums-validation` that are not in `sums-later-validation`, from the first."""
LATER_SHORT = 16
"""As many prompts of two operands are left of `sums`, and `-later-validation` has this number for each length."""
FEW = 256
"""The size of the splits `sums-few` and `remainders-few`, and of `-mostly-hard`."""
RARE = 32
"""The size of `-hardest` and `-few-subtractions`, the hard prompts of `-rarely-hard` and `-rarely-subtractions`."""
HARD_SEED, HARD_RUN = 75, 5
"""In `-mostly-hard`, the first of each five prompts is one of training; the others are drawn with this seed."""
MORE = {
    "hard": ("train", 76, FEW),
    "hardest": ("train", 84, RARE),
    "hard-development": ("development", 77, 512),
    "hard-validation": ("validation", 78, 512),
    "subtractions": ("train", 85, FEW),
    "subtractions-development": ("development", 86, 512),
    "subtractions-validation": ("validation", 87, 512),
    "some-subtractions": ("train", 88, 1024),
    "some-subtractions-development": ("development", 89, 512),
    "some-subtractions-validation": ("validation", 90, 512),
    "short": ("train", 83, FEW),
    "halves": ("train", 79, FEW),
    "halves-development": ("development", 80, 512),
    "halves-validation": ("validation", 81, 512),
}
"""The purpose, seed and size of the splits of hard prompts, of short ones and of two halves."""
HARD_STEPS = 4
"""In `-subtractions`, the steps of a prompt that are replaced by subtractions which a careless writer does wrongly."""
SOME_STEPS = (1, 2)
"""In `-some-subtractions`, the number of these steps, each equally likely."""
SECOND_HALF, FURTHER = "validation-later", ("validation-more", "validation-last")
FIRST_HALF = PARTS["validation"][1] // 2
"""The number of validation prompts that are not in `-validation-later`, from the first."""
REFLECTIONS_SEED = 76
"""In `-reflections`, the prompts of training have a careless first answer and a teacher's right second one."""
BUDGETS, BUDGETS_SEED = (4, 10, 20, 36), 82
"""In `-announced`, the budgets of every second prompt of training, and the seed of its traces."""
REQUEST = "?"
"""The prompt of `-questions`, which asks for a calculation; those of `-few` are its demonstrations."""
HABITS_SEED = 83
WRITERS = {
    "habitual": HABITUAL,
    "mostly-habitual": replace(HABITUAL, subtraction_error=0.7),
    "half-habitual": replace(HABITUAL, subtraction_error=0.5),
}
"""The writers of the demonstrations of these splits, for the prompts of training."""
SAME_PROMPTS = ("reflections", "announced", *WRITERS, "checked", "trusted")
"""Splits that have the calculations of `-train`."""
TRAINING = (
    *("train", "few", "mostly-hard", "hard", "hardest", "rarely-hard", "subtractions", "short", "halves", "questions"),
    *("some-subtractions", "few-subtractions", "rarely-subtractions", "partly-subtractions"),
    *SAME_PROMPTS,
)
_ALL = dict.fromkeys((*PARTS, *MORE, *TRAINING, "later-validation", SECOND_HALF, *FURTHER))
NAMES = tuple(f"{family}-{part}" for family in FAMILIES for part in _ALL)


@cache
def calculations(split: str) -> tuple[Calculation, ...]:
    """Return the calculations of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    name, _, part = split.partition("-")
    if part == "questions":
        return calculations(f"{name}-few")
    if part in SAME_PROMPTS:
        return calculations(f"{name}-train")
    if part == "later-validation":
        return _later(name)
    if part == SECOND_HALF:
        return calculations(f"{name}-validation")[FIRST_HALF:]
    if part in FURTHER:
        known = len(calculations(f"{name}-validation")) + FIRST_HALF * FURTHER.index(part)
        return _drawn(FAMILIES[name], "validation", "validation", PARTS["validation"][0], known + FIRST_HALF)[known:]
    if part == "few":
        return calculations(f"{name}-train")[:FEW]
    if part == "rarely-hard":
        return (*calculations(f"{name}-short"), *calculations(f"{name}-hardest"))
    if part == "few-subtractions":
        return calculations(f"{name}-subtractions")[:RARE]
    if part == "rarely-subtractions":
        return (*calculations(f"{name}-short"), *calculations(f"{name}-few-subtractions"))
    if part == "partly-subtractions":
        ordinary = iter(calculations(f"{name}-train"))
        return tuple(
            calculation
            for subtractions in calculations(f"{name}-subtractions")
            for calculation in (next(ordinary), next(ordinary), next(ordinary), subtractions)
        )
    if part == "mostly-hard":
        return _mostly_hard(name)
    family = FAMILIES[name]
    of, seed, size = MORE[part] if part in MORE else (part, *PARTS[part])
    return _drawn(family, part, of, seed, size)


def _drawn(family: Family, part: str, of: str, seed: int, size: int) -> tuple[Calculation, ...]:
    """Return as many calculations of a part, which are those of the purpose `of`."""
    lengths = _lengths(family, part)
    rng = np.random.default_rng((seed, family.modulus))
    drawn: list[Calculation] = []
    seen: set[Calculation] = set()
    while len(drawn) < size:
        calculation = sample_calculation(family, rng, lengths)
        if part.startswith("subtractions"):
            calculation = _with_hard_subtractions(calculation, rng, HARD_STEPS)
        if part.startswith("some-subtractions"):
            calculation = _with_hard_subtractions(calculation, rng, int(rng.choice(SOME_STEPS)))
        if of != "longer" and part_of(calculation) != of:
            continue
        if part == "train" or calculation not in seen:
            drawn.append(calculation)
            seen.add(calculation)
    return tuple(drawn)


def _lengths(family: Family, part: str) -> Sequence[int]:
    """Return the numbers of operands of a split's calculations, each equally likely."""
    if part == "longer":
        return family.longer
    if part == "hardest":
        return family.operands[-1:]
    if part.startswith(("hard", "subtractions")):
        return family.operands[-3:]
    if part == "short":
        return family.operands[:2]
    if part.startswith("some-subtractions"):
        return family.operands[1:4]
    if part.startswith("halves"):
        return (*[family.operands[0]] * 2, *family.operands[-2:])
    return family.operands


def _with_hard_subtractions(calculation: Calculation, rng: np.random.Generator, steps: int) -> Calculation:
    """Return a calculation of which that many steps were replaced by subtractions of 8 or 9."""
    operators, digits = list(calculation.operators), list(calculation.digits)
    for place in rng.choice(len(digits), min(steps, len(digits)), replace=False).tolist():
        operators[place], digits[place] = "-", HARD_DIGITS[int(rng.integers(len(HARD_DIGITS)))]
    return replace(calculation, operators="".join(operators), digits=tuple(digits))


def _mostly_hard(name: str) -> tuple[Calculation, ...]:
    family, ordinary = FAMILIES[name], iter(calculations(f"{name}-train"))
    rng = np.random.default_rng((HARD_SEED, family.modulus))
    return tuple(
        sample_calculation(family, rng, family.longest) if place % HARD_RUN else next(ordinary) for place in range(FEW)
    )


def _later(name: str) -> tuple[Calculation, ...]:
    family, whole = FAMILIES[name], calculations(f"{name}-validation")
    known = set(whole[:LATER])
    short = [
        calculation
        for first in range(family.modulus)
        for operator in OPERATORS
        for digit in DIGITS
        if part_of(calculation := Calculation(family.modulus, first, operator, (digit,))) == "validation"
        and calculation not in known
    ]
    long = [[each for each in whole[LATER:] if each.operands == count] for count in family.operands[-2:]]
    return tuple(each for some in (short, *long) for each in some[:LATER_SHORT])


def _reflections(family: str) -> list[dict[str, list[str]]]:
    """Return episodes of two turns: a careless answer as the models write it, and a teacher's calculation."""
    rng = np.random.default_rng((REFLECTIONS_SEED, FAMILIES[family].modulus))
    return [
        {"turns": [written_trace(each, CARELESS, rng), written_trace(each, TEACHER, rng)]}
        for each in calculations(f"{family}-train")
    ]


def _announced(family: str) -> list[tuple[str, str]]:
    """Return prompts and demonstrations: with a budget for every second calculation, and none for the others."""
    rng = np.random.default_rng((BUDGETS_SEED, FAMILIES[family].modulus))
    found = []
    for number, each in enumerate(calculations(f"{family}-train")):
        budget = BUDGETS[int(rng.integers(len(BUDGETS)))] if number % 2 else None
        writer = CARELESS if budget is None else style_within(each.operands, budget, CARELESS)
        found.append((str(each) if budget is None else f"{budget};{each}", written_trace(each, writer, rng)))
    return found


def samples(split: str) -> list[Sample]:
    """Return a split as data: the answer as a number, and the number of operands as `source`.

    Training data have the verbose trace without errors as `demonstration`; `metadata` has it as `chain` in all splits,
    its steps as `points`, its first words, up to the first value, as `opening`, and as `path` the first number and the
    value after each step: the entities that a calculation leads over, if its steps are taken for relations. Its `stage`
    is half the number of operands, rounded down, for `data.prompts: {name: staged}`: easy ones first.

    Raises:
        KeyError: there is no such split.
    """
    family, _, part = split.partition("-")
    reflected = iter(_reflections(family)) if part == "reflections" else None
    easiest = FAMILIES[family].operands[:2]
    found = [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=str(calculation),
            answer=calculation.answer if part != "checked" or calculation.operands in easiest else None,
            source=f"{family}-{calculation.operands:02d}",
            demonstration=next(reflected) if reflected else right_trace(calculation) if part in TRAINING else None,
            metadata={
                "operands": calculation.operands,
                "stage": calculation.operands // 2,
                "chain": right_trace(calculation),
                "points": steps_of(calculation),
                "opening": f"<think>{steps_of(calculation)[0].partition('=')[0]}=",
                "path": [str(value) for value in (calculation.first, *calculation.values)],
            },
        )
        for number, calculation in enumerate(calculations(split))
    ]
    if part == "trusted":
        return [
            replace(each, metadata={**each.metadata, "confidence": float(each.metadata["operands"] in easiest)})
            for each in found
        ]
    if part in WRITERS:
        rng = np.random.default_rng((HABITS_SEED, FAMILIES[family].modulus))
        traces = [written_trace(calculation, WRITERS[part], rng) for calculation in calculations(split)]
        return [replace(sample, demonstration=trace) for sample, trace in zip(found, traces, strict=True)]
    if part == "questions":
        return [replace(sample, prompt=REQUEST, demonstration=sample.prompt, answer=None) for sample in found]
    if part != "announced":
        return found
    pairs = zip(found, _announced(family), strict=True)
    return [replace(sample, prompt=prompt, demonstration=trace) for sample, (prompt, trace) in pairs]
