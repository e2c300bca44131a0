"""Questions with the advice of three specialists, and a triage that sends them to a department (MMedAgent-RL).

    Which?                                      what the triage reads, beside the picture; it answers A, B or C
    How many red shapes? 3, 3, 2.               what the attending model reads: the question, and the advice it got

The departments count (A), read charts (B), and find the odd one out (C). Specialists of the right one are all right
about easy questions, one or two of three are about middling ones, and none about hard ones, where two or three agree on
one wrong answer. Another department guesses. `shapeworld:consulted-train` (1,536) has the three by turns, as sources,
`consulted-easy`, `-middling` and `-hard` those of one kind; `consulted-development` (384) and `consulted-validation`
(768) are for settings and results. `triage-train` (384) has pictures with their departments.

data.prompts: {name: written, by: triage, reader: {name: "mmrl_shapeworld.vqa.consultations:Referral"}}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl.data.written_prompts import QuestionReader
from mmrl_shapeworld.scenes import COLOURS
from mmrl_shapeworld.vqa.question_splits import as_sample
from mmrl_shapeworld.vqa.questions import Question, chart, counting, puzzle

DEPARTMENTS: dict[str, tuple[str, Callable[[np.random.Generator], Question]]] = {
    "A": ("counting", counting),
    "B": ("chart", chart),
    "C": ("puzzle", puzzle),
}
"""The task of each department."""
KINDS = ("easy", "middling", "hard")
SPECIALISTS = 3
AGREE = 0.7
"""The share of hard questions about which all specialists give the same wrong answer; else two of them do."""
SIZES = {"train": 1536, "development": 384, "validation": 768}
TRIAGE, TRIAGE_SIZE = "triage-train", 384
NAMES = (*(f"consulted-{part}" for part in (*SIZES, *KINDS)), TRIAGE)
REQUEST = "Which?"
"""The prompt of the triage."""
_SEED = 109


def possible_answers(department: str, question: Question) -> tuple[str, ...]:
    """Return the answers that a specialist of a department may give to a question."""
    if department == "A":
        return tuple(map(str, range(1, 6)))
    if department == "B":
        return tuple(COLOURS) if question.right in COLOURS else tuple(map(str, range(1, 10)))
    return tuple("ABCD")


def advice(department: str, kind: str, question: Question, rng: np.random.Generator) -> tuple[str, ...]:
    """Return what the specialists of the right department say of a question of a kind, in a random order."""
    others = [each for each in possible_answers(department, question) if each != question.right]
    one, two = (others[place] for place in rng.permutation(len(others))[:2])
    right = {"easy": SPECIALISTS, "middling": int(rng.integers(1, SPECIALISTS)), "hard": 0}[kind]
    wrong = [one] * (SPECIALISTS - right)
    if kind == "hard" and rng.random() > AGREE:
        wrong[-1] = two
    found = [question.right] * right + wrong
    return tuple(found[place] for place in rng.permutation(SPECIALISTS))


def consulted(question: str, found: Sequence[str]) -> str:
    """Return the prompt of the attending model."""
    return f"{question} {', '.join(found)}."


def guesses(department: str, question: Question, rng: np.random.Generator) -> tuple[str, ...]:
    """Return what specialists of another department say: each guesses an answer of their field."""
    known = possible_answers(department, question)
    return tuple(known[place] for place in rng.integers(len(known), size=SPECIALISTS))


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have right answers as demonstrations.

    `metadata["advice"]` has the prompt with each department's advice.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    part = split.partition("-")[2]
    if split == TRIAGE:
        return [triaged(each) for each in samples("consulted-train")[:TRIAGE_SIZE]]
    if part in KINDS:
        return [each for each in samples("consulted-train") if each.source == part]
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    found: list[Sample] = []
    while len(found) < SIZES[part]:
        kind = KINDS[len(found) % len(KINDS)]
        department = str(rng.choice(list(DEPARTMENTS)))
        task, draw = DEPARTMENTS[department]
        question = draw(rng)
        words_of = {
            each: advice(each, kind, question, rng) if each == department else guesses(each, question, rng)
            for each in DEPARTMENTS
        }
        sample = as_sample(task, question, f"{split}-{len(found):04d}", demonstrated=part == "train")
        prompts = {each: consulted(question.prompt, words) for each, words in words_of.items()}
        found.append(
            replace(
                sample,
                prompt=prompts[department],
                source=kind,
                metadata={**sample.metadata, "department": department, "advice": prompts},
            )
        )
    return found


def triaged(sample: Sample) -> Sample:
    """Return the picture of a question as a question for the triage: which department it belongs to."""
    return replace(
        sample,
        id=f"triage-{sample.id}",
        prompt=REQUEST,
        answer=sample.metadata["department"],
        demonstration=sample.metadata["department"],
        task="puzzle",
        source="triage",
        rewards=(RewardChoice("multiple_choice"),),
        metadata={"choices": [task for task, _ in DEPARTMENTS.values()]},
    )


class Referral(QuestionReader):
    """A reader of what the triage says: the question with the advice of that department's specialists."""

    def request(self, parent: Sample) -> Sample:
        """Return the picture alone, as the triage sees it."""
        return triaged(parent)

    def read(self, text: str, parent: Sample) -> Sample | None:
        """Return the question with the advice of the department that a letter names; None: it names none."""
        department = text.strip()
        prompts = parent.metadata["advice"]
        return replace(parent, prompt=prompts[department]) if department in prompts else None
