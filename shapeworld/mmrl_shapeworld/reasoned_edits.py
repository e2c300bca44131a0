"""Edits whose instruction does not name the thing to change ("make the big one blue"), for a model that finds it first.

A picture has a big and a small thing, a left and a right one, or two of different shapes ("make the round one blue").
A writer that sees it thinks, and names the thing for an editor, which takes things by colour and shape alone: "the red
circle is big; make the red circle blue", or "the circle is red; make the red circle blue" of the round one, of which
the reader `instructions` takes what stands behind the semicolon.
`shapeworld:reasoned-train`, `-development` and `-validation`, about sizes, share no picture, and neither do
`placed-train`, `-development` and `-validation`, about places, and `formed-train`, `-development` and `-validation`,
about shapes. The demonstrations of `reasoned-taught`, `placed-taught` and `formed-taught` are those of a careless
annotator of the pictures of training, who takes one thing for the other in many of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.editing import Edit, judge_edit
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, draw, picture_uri, place

Cue = Literal["size", "place", "shape"]
SPLITS: Mapping[str, tuple[int, int, Cue]] = {
    "reasoned-train": (191, 1024, "size"),
    "reasoned-development": (192, 64, "size"),
    "reasoned-validation": (193, 96, "size"),
    "placed-train": (195, 1024, "place"),
    "placed-development": (196, 64, "place"),
    "placed-validation": (197, 96, "place"),
    "formed-train": (201, 1024, "shape"),
    "formed-development": (202, 64, "shape"),
    "formed-validation": (203, 96, "shape"),
}
"""Seed and size of each split, and what an instruction goes by. Settings are chosen on development; validation is for
results."""
TAUGHT = {
    "reasoned-taught": ("reasoned-train", 194),
    "placed-taught": ("placed-train", 198),
    "formed-taught": ("formed-train", 204),
}
"""Splits with the pictures of training, each `TIMES` times, with a demonstration, and the annotator's seed."""
NAMES = (*SPLITS, *TAUGHT)
TIMES = 2
KNOWN = 0.6
"""The share of pictures in which the careless annotator names the right thing, and not the other one."""
SIDES = {"big": (0.36, 0.41), "small": (0.24, 0.28)}
"""The sides of a thing of each size, as shares of the picture's."""
PLACES, ANY_SIDE, APART = ("left", "right"), (0.26, 0.36), 0.25
"""The words for places, the sides of things that have one, and the least distance between their centres along x."""
FORMS = {"circle": "round", "square": "square", "triangle": "pointed"}
"""The word for things of each shape."""
MOSTLY = 0.8
"""The least share of the rest that a consistent edit keeps."""


@dataclass(frozen=True)
class ReasonedEdit:
    """An edit, and the word for the size, the place or the shape of the thing to change, in place of its name."""

    edit: Edit
    word: str

    @property
    def instruction(self) -> str:
        """The user's words."""
        return f"make the {self.word} one {_become(self.edit)}"

    def thought(self, which: int) -> str:
        """Return a text that takes the thing with this number for the one that is meant."""
        thing = self.edit.source.things[which]
        found = (
            f"{thing.shape} is {thing.colour}"
            if self.word in FORMS.values()
            else f"{thing.colour} {thing.shape} is {self.word}"
        )
        return f"the {found}; {replace(self.edit, which=which)}"


@cache
def samples(split: str) -> list[Sample]:
    """Return a split: the picture with the instruction, and the edit as `answer`.

    Raises:
        KeyError: there is no such split.
    """
    if split in TAUGHT:
        pictures, seed = TAUGHT[split]
        rng = np.random.default_rng(seed)
        return [
            replace(sample, id=f"{sample.id}-{time}", demonstration=careless_thought(each, rng))
            for sample, each in zip(samples(pictures), _of_split(pictures), strict=True)
            for time in range(TIMES)
        ]
    return [
        Sample(
            id=f"{split}-{number:03d}",
            prompt=each.instruction,
            images=(picture_uri(draw(each.edit.source)),),
            answer=each.edit.as_dict(),
            source=f"{each.word}-{each.edit.kind}",
        )
        for number, each in enumerate(_of_split(split))
    ]


def careless_thought(each: ReasonedEdit, rng: np.random.Generator) -> str:
    """Return what the annotator writes: every now and then the other thing is the one that is meant."""
    right = each.edit.which
    return each.thought(right if rng.random() < KNOWN else 1 - right)


def draw_reasoned_edit(rng: np.random.Generator, cue: Cue = "size") -> ReasonedEdit:
    """Draw two things that differ in size or shape, or stand side by side, and an edit that would change either."""
    sides = tuple(SIDES.values()) if cue == "size" else (ANY_SIDE, ANY_SIDE)
    while True:
        chosen = [SEEN_KINDS[number] for number in rng.permutation(len(SEEN_KINDS))[:2]]
        scene = place([(*kind, float(rng.uniform(*side))) for kind, side in zip(chosen, sides, strict=True)], rng)
        words = COLOURS if rng.random() < 0.5 else SHAPES
        fresh = [word for word in words if all(word not in kind for kind in chosen)]
        if scene is None or not fresh:
            continue
        which, becomes = int(rng.integers(2)), str(rng.choice(fresh))
        edit = Edit(scene, which, becomes)
        if (edit.wanted.colour, edit.wanted.shape) in SEEN_KINDS:
            order = [0, 1] if rng.random() < 0.5 else [1, 0]
            things = tuple(scene.things[number] for number in order)
            made = Edit(Scene(things), order.index(which), becomes)
            if cue == "size":
                return ReasonedEdit(made, tuple(SIDES)[which])
            if cue == "shape" and chosen[0][1] != chosen[1][1]:
                return ReasonedEdit(made, FORMS[chosen[which][1]])
            behind = scene.things[which].x - scene.things[1 - which].x
            if cue == "place" and abs(behind) >= APART:
                return ReasonedEdit(made, PLACES[behind > 0])


class EditChecklist(Reward):
    """The share of three questions about an edit that have the answer yes, in [0, 1].

    Is the named thing what the instruction asks for; is it that with its other attribute as it was; and with its size?
    A picture in which nothing was changed has no yes, and neither has one in which the other thing was.
    """

    name = "edit_checklist"
    source = "docs/shapeworld.md"
    needs = ("image", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        """Answer the questions about one edited picture."""
        verdict = judge_edit(answer_image(item.image), Edit.from_dict(item.references["answer"]))
        done, other, steady = verdict.answers
        return float(np.mean([done, done and other, done and steady]))


class EditConsistency(Reward):
    """The answer to one question, 0 or 1: is the rest of the picture as it was, for the most part?"""

    name = "edit_consistency"
    source = "docs/shapeworld.md"
    needs = ("image", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        """Compare one edited picture with its source."""
        verdict = judge_edit(answer_image(item.image), Edit.from_dict(item.references["answer"]))
        return float(verdict.kept >= MOSTLY)


@cache
def _of_split(split: str) -> list[ReasonedEdit]:
    seed, size, cue = SPLITS[split]
    rng = np.random.default_rng(seed)
    return [draw_reasoned_edit(rng, cue) for _ in range(size)]


def _become(edit: Edit) -> str:
    return f"a {edit.becomes}" if edit.becomes in SHAPES else edit.becomes
