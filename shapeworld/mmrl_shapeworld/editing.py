"""Instructions to edit a picture ("make the red circle blue"), their pictures, and whether one was followed.

The instruction names one thing of the source by its colour and shape, and the colour or the shape that it is to have.
Everything else must stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from mmrl_shapeworld.captions import KINDS, Kind
from mmrl_shapeworld.checker import DIRT, Seen, read
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, Thing, draw, place, thing_mask
from mmrl_shapeworld.similarity import dilate, kept_share

PIXELS = 32
KEPT = 0.95
"""Least share of the rest that a strictly right edit keeps."""
NEAR = 0.09
"""The largest distance of the edited thing's centre from its place in the source, in shares of the picture's side."""
SIZE = 0.12
"""The largest relative change of its side."""


@dataclass(frozen=True)
class Edit:
    """A source scene, the number of the thing to change, and what it becomes: a colour or a shape."""

    source: Scene
    which: int
    becomes: str

    def __str__(self) -> str:
        thing = self.source.things[self.which]
        article = "a " if self.becomes in SHAPES else ""
        return f"make the {thing.colour} {thing.shape} {article}{self.becomes}"

    @property
    def kind(self) -> str:
        """recolour or reshape."""
        return "recolour" if self.becomes in COLOURS else "reshape"

    @property
    def wanted(self) -> Thing:
        """The thing as it is to be."""
        thing = self.source.things[self.which]
        return replace(thing, colour=self.becomes) if self.kind == "recolour" else replace(thing, shape=self.becomes)

    @property
    def target(self) -> Scene:
        """The scene that the edit asks for."""
        things = list(self.source.things)
        things[self.which] = self.wanted
        return Scene(tuple(things))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {"things": [vars(t) for t in self.source.things], "which": self.which, "becomes": self.becomes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Edit:
        """Return the edit of `as_dict`."""
        return cls(Scene(tuple(Thing(**thing) for thing in data["things"])), data["which"], data["becomes"])


@dataclass(frozen=True)
class EditVerdict:
    """The scores of an edited picture."""

    score: float  # [0, 1]: the change, times what was kept, lowered by dirt
    changed: float  # [0, 1]: how far the named thing is what it was to become, where it was
    kept: float  # [0, 1]: how much of the rest still stands
    strict: bool
    answers: tuple[bool, bool, bool]  # of the named thing: changed as instructed, other attribute kept, size kept


def sample_edit(rng: np.random.Generator, kinds: tuple[Kind, ...] = KINDS) -> Edit:
    """A scene of one to three things of different kinds, and an instruction that stays among the given kinds."""
    while True:
        count = int(rng.choice([1, 2, 3], p=[0.25, 0.5, 0.25]))
        chosen = [kinds[number] for number in rng.permutation(len(kinds))[:count]]
        low, high = {1: (0.3, 0.44), 2: (0.26, 0.4), 3: (0.24, 0.3)}[count]
        scene = place([(*kind, float(rng.uniform(low, high))) for kind in chosen], rng)
        if scene is None:
            continue
        colour, shape = chosen[0]
        words = COLOURS if rng.random() < 0.5 else SHAPES
        becomes = str(rng.choice([word for word in words if word not in (colour, shape)]))
        edit = Edit(scene, 0, becomes)
        wanted = (edit.wanted.colour, edit.wanted.shape)
        if wanted in kinds and wanted not in chosen:
            order = rng.permutation(count)
            things = tuple(scene.things[number] for number in order)
            return Edit(Scene(things), int(np.flatnonzero(order == 0)[0]), becomes)


def judge_edit(picture: Image.Image, edit: Edit) -> EditVerdict:
    """Judge an edited picture by the scene that it came from.

    The change earns 0.6 if the thing at the named place has the instruction's colour or shape, 0.2 if it kept the
    other, and 0.2 if it kept its place and size, which also count alone. That is multiplied by the share of the rest
    that still stands, and lowered by dirt and by things that came or went.
    """
    reading = read(picture)
    pixels = picture.size[0]
    wanted = edit.wanted
    thing = _at(reading.things, wanted)
    answers = (False, False, False)
    if thing is not None:
        recolour = edit.kind == "recolour"
        done = thing.colour == wanted.colour if recolour else thing.shape == wanted.shape
        other = thing.shape == wanted.shape if recolour else thing.colour == wanted.colour
        steady = abs(thing.side - wanted.side) <= SIZE
        answers = (done, other, steady)
    credit = float(np.dot((0.6, 0.2, 0.2), answers))
    region = thing_mask(edit.source.things[edit.which], pixels) | thing_mask(wanted, pixels)
    kept = kept_share(picture, draw(edit.source, pixels), dilate(region, max(1, pixels // 16)))
    odd = abs(len(reading.things) - len(edit.source.things))
    score = credit * kept * max(0.0, 1 - 2 * reading.dirt) / (1 + 0.5 * odd)
    strict = credit > 0.99 and kept >= KEPT and odd == 0 and reading.dirt <= DIRT
    return EditVerdict(score, credit, kept, bool(strict), answers)


def _at(things: tuple[Seen, ...], wanted: Thing) -> Seen | None:
    """Return the thing nearest to an expected place within `NEAR`, or None."""
    near = [(max(abs(t.x - wanted.x), abs(t.y - wanted.y)), number) for number, t in enumerate(things)]
    distance, number = min(near, default=(1.0, 0))
    return things[number] if distance <= NEAR else None
