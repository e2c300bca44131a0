"""Questions that a caption answers about its picture, for a model that both draws and looks.

A caption is complete, so it answers how many things of a kind there are, and what colour or shape they have. Whether
the whole caption is true of a picture is a question too, and so is a relation between two things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl_shapeworld.captions import Caption, Clause
from mmrl_shapeworld.scenes import COLOURS, SHAPES

COUNTS = ("zero", "one", "two", "three", "four")
YES, NO = "yes", "no"
ANSWERS: tuple[tuple[str, ...], ...] = ((YES, NO), COUNTS, tuple(COLOURS), SHAPES)
"""The answers of each kind of question."""
WHOLE = 0.2
"""The share of questions about whole captions among those about true pictures, in pre-training and in evaluations."""
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@dataclass(frozen=True)
class PictureQuestion:
    """A question about a picture, in the words of `mmrl_shapeworld.unified_model`, and its answer."""

    text: str
    answer: str


def whole_question(caption: Caption) -> str:
    """Return the question whether a caption is true of a picture."""
    return f"is this {caption} ?"


def relation_question(one: Clause, relation: str, other: Clause) -> str:
    """Return the question whether a thing has a relation to another; their sizes are left out."""
    return f"is the {one.colour} {one.shape} {relation} the {other.colour} {other.shape} ?"


def count_question(clause: Clause) -> PictureQuestion:
    """Return how many things there are of the kind of a clause, its size left out."""
    return PictureQuestion(f"how many {clause.colour} {clause.shape}s ?", COUNTS[clause.count])


def clause_question(clause: Clause) -> PictureQuestion:
    """Return what asks about one clause: its number, or where it names a size, whether the thing is there."""
    return count_question(clause) if clause.size is None else PictureQuestion(f"is there {clause} ?", YES)


def answered_questions(caption: Caption) -> list[PictureQuestion]:
    """Return all questions that a caption answers, those of whole captions left out."""
    found = [count_question(clause) for clause in caption.clauses]
    found += _attributes(caption.clauses)
    found += [
        PictureQuestion(clause_question(replace(clause, size=size)).text, YES if size == clause.size else NO)
        for clause in caption.clauses
        if clause.size is not None
        for size in ("small", "large")
    ]
    if caption.relation is not None:
        one, other = caption.clauses
        found += [
            PictureQuestion(relation_question(one, relation, other), answer)
            for relation, answer in ((caption.relation, YES), (OPPOSITE[caption.relation], NO))
        ]
    return found


def _attributes(clauses: Sequence[Clause]) -> list[PictureQuestion]:
    """Return the questions of colours of shapes, and of shapes of colours, that are not ambiguous."""
    found = []
    for clause in clauses:
        if sum(each.shape == clause.shape for each in clauses) == 1:
            found.append(PictureQuestion(f"what colour has the {clause.shape} ?", clause.colour))
        if sum(each.colour == clause.colour for each in clauses) == 1:
            found.append(PictureQuestion(f"what shape is {clause.colour} ?", clause.shape))
    return found
