"""Captions as data: their clauses, their wording, and scenes that satisfy them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, Thing, place

NUMBERS = {1: "a", 2: "two", 3: "three", 4: "four"}
RELATIONS = ("left of", "right of", "above", "below")
RELATION_GAP = 0.1
"""Centres must differ by this share of the picture for a relation to hold (GenEval's threshold)."""
Kind = tuple[str, str]  # (colour, shape)
KINDS: tuple[Kind, ...] = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)
HELDOUT_KINDS: tuple[Kind, ...] = (("green", "triangle"), ("yellow", "circle"))
"""Compositions that no training caption or picture contains."""
SEEN_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in HELDOUT_KINDS)
"""The kinds that training captions name."""


@dataclass(frozen=True)
class Clause:
    """A number of things of one kind."""

    count: int
    colour: str
    shape: str
    size: str | None = None

    def __str__(self) -> str:
        words = [NUMBERS[self.count], self.size or "", self.colour, self.shape + ("s" if self.count > 1 else "")]
        return " ".join(word for word in words if word)

    def fits(self, colour: str, shape: str | None, size: str) -> bool:
        """Return whether a thing is of the kind that this clause names."""
        return colour == self.colour and shape == self.shape and self.size in (None, size)


@dataclass(frozen=True)
class Caption:
    """A caption of one or two clauses, with or without a relation between two single things.

    A caption is complete: a picture must not contain anything else.
    """

    clauses: tuple[Clause, ...]
    relation: str | None = None

    def __str__(self) -> str:
        return f" {self.relation or 'and'} ".join(map(str, self.clauses))

    @property
    def total(self) -> int:
        """The number of things that the caption names."""
        return sum(clause.count for clause in self.clauses)

    @property
    def form(self) -> str:
        """single, count, pair or relation."""
        if self.relation:
            return "relation"
        return "pair" if len(self.clauses) == 2 else "count" if self.total > 1 else "single"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {"clauses": [vars(clause) for clause in self.clauses], "relation": self.relation}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Caption:
        """Return the caption of `as_dict`."""
        return cls(tuple(Clause(**clause) for clause in data["clauses"]), data.get("relation"))

    def holds_for(self, scene: Scene) -> bool:
        """Return whether a scene contains exactly what the caption names, by the scene's data."""
        if len(scene.things) != self.total:
            return False
        named = [[t for t in scene.things if c.fits(t.colour, t.shape, t.size)] for c in self.clauses]
        if any(len(things) != clause.count for things, clause in zip(named, self.clauses, strict=True)):
            return False
        return self.relation is None or related(named[0][0], named[1][0], self.relation)


def related(a: Thing, b: Thing, relation: str) -> bool:
    """Return whether a's centre lies `relation` b's centre by at least `RELATION_GAP`."""
    return relation_holds(a.x - b.x, a.y - b.y, relation)


def relation_holds(dx: float, dy: float, relation: str) -> bool:
    """The same for a difference of centres, in shares of the picture's side."""
    distance = {"left of": -dx, "right of": dx, "above": -dy, "below": dy}[relation]
    return distance >= RELATION_GAP


def sample_caption(rng: np.random.Generator, kinds: tuple[Kind, ...]) -> Caption:
    """Sample a caption about the given kinds of things."""
    form = rng.choice(["single", "count", "pair", "relation"], p=[0.2, 0.25, 0.3, 0.25])
    first, second = rng.permutation(len(kinds))[:2]
    a, b = kinds[first], kinds[second]
    if form == "single":
        return Caption((Clause(1, a[0], a[1], size=(None, "small", "large")[int(rng.choice(3))]),))
    if form == "count":
        return Caption((Clause(int(rng.integers(2, 5)), a[0], a[1]),))
    relation = str(rng.choice(RELATIONS)) if form == "relation" else None
    return Caption((Clause(1, a[0], a[1]), Clause(1, b[0], b[1])), relation)


def sample_scene(caption: Caption, rng: np.random.Generator) -> Scene:
    """Sample a scene that the caption describes."""
    while True:
        kinds = [(c.colour, c.shape, _side(caption, c, rng)) for c in caption.clauses for _ in range(c.count)]
        scene = place(kinds, rng)
        if scene is not None and caption.holds_for(scene) and _clearly(caption, scene):
            return scene


def _clearly(caption: Caption, scene: Scene) -> bool:
    """Return whether a relation holds by enough to survive rounding to whole pixels."""
    if caption.relation is None:
        return True
    a, b = scene.things
    return relation_holds((a.x - b.x) / 1.6, (a.y - b.y) / 1.6, caption.relation)


def _side(caption: Caption, clause: Clause, rng: np.random.Generator) -> float:
    if clause.size == "small":
        low, high = 0.22, 0.28
    elif clause.size == "large":
        low, high = 0.5, 0.62
    elif caption.total == 1:
        low, high = 0.34, 0.44
    elif caption.total == 2:
        low, high = 0.26, 0.4
    else:
        low, high = 0.22, 0.32
    return float(rng.uniform(low, high))
