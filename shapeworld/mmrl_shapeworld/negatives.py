"""Near misses: captions and scenes that differ from true ones in one attribute only.

A scorer of images and texts must tell them apart: the tiny CLIP (`mmrl_shapeworld.clip_model`) is trained and measured
on them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from mmrl_shapeworld.captions import KINDS, NUMBERS, RELATIONS, Caption, Clause, related
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, Thing

ATTRIBUTES = ("colour", "shape", "count", "size", "relation")
"""The changes of hard negatives. `relation` also holds the two things exchanged."""
SIZES = (None, "small", "large")
EDGE, GAP = 0.03, 0.07
"""Least distance of a thing from the picture's side and from another thing, as `scenes.place` keeps them."""


@cache
def every_caption() -> tuple[Caption, ...]:
    """All 732 captions that `captions.sample_caption` can make, each once."""
    singles = [Caption((Clause(1, *kind, size=size),)) for kind in KINDS for size in SIZES]
    counts = [Caption((Clause(number, *kind),)) for kind in KINDS for number in NUMBERS if number > 1]
    pairs = [
        Caption((Clause(1, *a), Clause(1, *b)), relation)
        for a in KINDS
        for b in KINDS
        if a != b
        for relation in (None, *RELATIONS)
    ]
    return (*singles, *counts, *pairs)


def true_captions(scene: Scene) -> list[Caption]:
    """Every caption that holds for a scene: none if no caption can say what it shows."""
    kinds = [(thing.colour, thing.shape) for thing in scene.things]
    if len(kinds) == 1:
        sizes = [size for size in SIZES if size in (None, scene.things[0].size)]
        return [Caption((Clause(1, *kinds[0], size=size),)) for size in sizes]
    if len(set(kinds)) == 1 and len(kinds) in NUMBERS:
        return [Caption((Clause(len(kinds), *kinds[0]),))]
    if len(kinds) != 2:
        return []
    found = []
    for first, second in (scene.things, scene.things[::-1]):
        clauses = (Clause(1, first.colour, first.shape), Clause(1, second.colour, second.shape))
        relations = [relation for relation in RELATIONS if related(first, second, relation)]
        found += [Caption(clauses, relation) for relation in (None, *relations)]
    return found


def hard_negatives(caption: Caption, attribute: str) -> list[Caption]:
    """The captions of ShapeWorld that differ from one in a single attribute, named in `ATTRIBUTES`.

    Empty where the caption has no such attribute. Some may hold for a picture all the same ("a red circle" of a small
    one, "above" beside "left of"): ask `holds_for` of the scene.

    Raises:
        KeyError: there is no such attribute.
    """
    changed: list[Caption] = []
    if attribute in ("colour", "shape"):
        for place, clause in enumerate(caption.clauses):
            for word in COLOURS if attribute == "colour" else SHAPES:
                clauses = list(caption.clauses)
                clauses[place] = replace(clause, colour=word) if attribute == "colour" else replace(clause, shape=word)
                changed.append(replace(caption, clauses=tuple(clauses)))
    elif attribute == "count":
        if len(caption.clauses) == 1:
            changed = [Caption((replace(caption.clauses[0], count=number),)) for number in NUMBERS]
    elif attribute == "size":
        if caption.total == 1:
            changed = [Caption((replace(caption.clauses[0], size=size),)) for size in SIZES]
    elif attribute == "relation":
        if caption.relation:
            changed = [replace(caption, relation=relation) for relation in RELATIONS]
            changed.append(replace(caption, clauses=caption.clauses[::-1]))
    else:
        raise KeyError(f"no attribute {attribute!r}: choose one of {', '.join(ATTRIBUTES)}")
    return [other for other in changed if other != caption and other in _universe()]


@cache
def _universe() -> frozenset[Caption]:
    return frozenset(every_caption())


def edited(scene: Scene, rng: np.random.Generator, tries: int = 100) -> Scene:
    """A scene with one thing recoloured, reshaped, resized, moved, removed or added.

    It may hold what no caption can say, and (a thing moved) may be as true as before: ask `true_captions`.
    """
    for _ in range(tries):
        things = list(scene.things)
        place = int(rng.integers(len(things)))
        change = str(rng.choice(["colour", "shape", "side", "move", "remove", "add"], p=[0.2, 0.3, 0.1, 0.1, 0.1, 0.2]))
        if change == "remove":
            del things[place]
        elif change == "add":
            kind = KINDS[rng.integers(len(KINDS))]
            if rng.random() < 0.5:  # the same thing once more
                kind = (things[place].colour, things[place].shape)
            things.append(_moved(Thing(*kind, 0.5, 0.5, float(rng.uniform(0.22, 0.32))), rng))
        else:
            things[place] = _changed(things[place], change, rng)
        if things != list(scene.things) and _fits(things):
            return Scene(tuple(things))
    return Scene(scene.things[:-1])


def _changed(thing: Thing, change: str, rng: np.random.Generator) -> Thing:
    if change == "colour":
        return replace(thing, colour=str(rng.choice([colour for colour in COLOURS if colour != thing.colour])))
    if change == "shape":
        return replace(thing, shape=str(rng.choice([shape for shape in SHAPES if shape != thing.shape])))
    if change == "side":
        return replace(thing, side=float(rng.uniform(0.22, 0.62)))
    return _moved(thing, rng)


def _moved(thing: Thing, rng: np.random.Generator) -> Thing:
    low, high = thing.side / 2 + EDGE, 1 - thing.side / 2 - EDGE
    return replace(thing, x=float(rng.uniform(low, high)), y=float(rng.uniform(low, high)))


def _fits(things: list[Thing]) -> bool:
    """Return whether all things are inside the picture and separate."""
    inside = all(min(thing.box) >= EDGE - 1e-9 and max(thing.box) <= 1 - EDGE + 1e-9 for thing in things)
    return inside and not any(
        max(abs(a.x - b.x), abs(a.y - b.y)) < (a.side + b.side) / 2 + GAP
        for place, a in enumerate(things)
        for b in things[:place]
    )
