"""Eight kinds of questions, each with the right answer and with one as a careless annotator would have given it.

The annotator's mistakes are what the warm start of the embedded VLM learns beside the task, so that a reward has
something to correct: some are spread evenly, and some are habits, so common in a recognisable part of the questions
that the most frequent answer there is a wrong one. Nothing but `tools.shapeworld_pretrain.vlm` reads those to these
questions; those to the four of `mmrl_shapeworld.vqa.heldout_tasks` are demonstrations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmrl_shapeworld.captions import KINDS, Kind
from mmrl_shapeworld.scenes import COLOURS, SHAPES
from mmrl_shapeworld.vqa.canvas import INK, LINE, NUMBERS, PIXELS, Picture, blank, paint, scatter
from mmrl_shapeworld.vqa.glyphs import LETTERS, WIDTH, written

Box = tuple[int, int, int, int]
Region = tuple[str, Box]
"""A thing ("red circle"), a letter or a bar ("red bar"), and the box around it."""
NAMES = (*(f"{colour} {shape}" for colour, shape in KINDS), *LETTERS, *(f"{colour} bar" for colour in COLOURS))
"""The names of all regions."""
HABIT, SPARED = 0.5, 0.42
"""The probability that an annotator follows a habit, and that of the right answer; the rest is any other answer."""
PLACES = ("top left", "top right", "bottom left", "bottom right")
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
FRAMES = 4
SCALE = 3
"""Pixels to a dot of a letter."""


@dataclass(frozen=True)
class Question:
    """A question and its answers. `frames` is empty (text only), one picture, or the frames of a clip."""

    prompt: str
    answer: Any  # as the task's reward takes it
    right: str  # the right answer as a text
    annotated: str  # what the careless annotator wrote
    frames: tuple[Picture, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what the reward needs besides
    regions: tuple[tuple[Region, ...], ...] = ()  # what each frame shows, and where


def grounding(rng: np.random.Generator) -> Question:
    """Ask where one of two or three things is. Annotated boxes are drawn too large, by two pixels a side or so."""
    kinds, boxes, picture = _things(int(rng.integers(2, 4)), rng)
    right = box_answer(boxes[0])
    annotated = box_answer(_loose(boxes[0], rng))
    regions = tuple(zip(map(named, kinds), boxes, strict=True))
    return Question(
        f"Locate the {named(kinds[0])}.", list(boxes[0]), right, annotated, (picture,), IN_PIXELS, (regions,)
    )


def detection(rng: np.random.Generator) -> Question:
    """All of one to three things, from left to right. Annotated boxes are too large, and one in twelve is left out."""
    kinds, boxes, picture = _things(int(rng.integers(1, 4)), rng)
    order = sorted(range(len(boxes)), key=lambda n: boxes[n])
    found = [(boxes[n], named(kinds[n])) for n in order]
    seen = [(_loose(box, rng), label) for box, label in found]
    if len(seen) > 1 and rng.random() < 0.25:
        del seen[rng.integers(len(seen))]
    answer = [{"box": list(box), "label": label} for box, label in found]
    regions = tuple((label, box) for box, label in found)
    return Question(
        "Detect all shapes.", answer, boxes_answer(found), boxes_answer(seen), (picture,), IN_PIXELS, (regions,)
    )


def counting(rng: np.random.Generator) -> Question:
    """Ask how many things of a colour or of a shape there are, from one to five. Annotators stop early at five."""
    count, others = int(rng.integers(1, 6)), int(rng.integers(0, 3))
    by_colour = rng.random() < 0.5
    names = list(COLOURS) if by_colour else list(SHAPES)
    target, *rest = (names[n] for n in rng.permutation(len(names)))
    picture, regions = blank(), []
    sides = rng.integers(8, 12, count + others).tolist()
    for number, (side, (left, top)) in enumerate(zip(sides, scatter(sides, rng), strict=True)):
        name = target if number < count else str(rng.choice(rest))
        kind = (name, str(rng.choice(SHAPES))) if by_colour else (str(rng.choice(list(COLOURS))), name)
        regions.append((named(kind), paint(picture, kind, left, top, side)))
    annotated = habit(count, count - 1, range(1, 6), rng) if count == 5 else slip(count, _beside(count, 1, 6), 0.7, rng)
    prompt = f"How many {target} shapes?" if by_colour else f"How many {target}s?"
    return Question(prompt, count, str(count), str(annotated), (picture,), regions=(tuple(regions),))


def ocr(rng: np.random.Generator) -> Question:
    """Three large letters. Annotators take C for O, E for F and K for X."""
    letters = [LETTERS[n] for n in rng.integers(len(LETTERS), size=3)]
    ink = written("".join(letters), SCALE)
    height, width = ink.shape
    top, left = int(rng.integers(0, PIXELS - height + 1)), int(rng.integers(0, PIXELS - width + 1))
    picture = blank()
    picture[top : top + height, left : left + width][ink] = rng.choice([INK, *NUMBERS.values()])
    pitch = SCALE * (WIDTH + 1)
    edges = [(left + pitch * n, top, left + pitch * n + SCALE * WIDTH, top + height) for n in range(3)]
    habits = {"C": "O", "E": "F", "K": "X"}
    read = [habit(x, habits[x], LETTERS, rng) if x in habits else slip(x, LETTERS, 0.75, rng) for x in letters]
    text, regions = "".join(letters), tuple(zip(letters, edges, strict=True))
    return Question("Read the text.", text, text, "".join(read), (picture,), regions=(regions,))


def chart(rng: np.random.Generator) -> Question:
    """Four bars of one to nine units: a value, or the tallest or shortest. Annotators read tall bars one too low, and
    take the runner-up where it is close."""
    order = [list(COLOURS)[n] for n in rng.permutation(4)]
    values = [int(v) for v in rng.permutation(9)[:4] + 1]
    picture, bars = blank(), []
    start, floor = int(rng.integers(1, 7)), int(rng.integers(47, 55))
    for place, (colour, value) in enumerate(zip(order, values, strict=True)):
        box = (start + 13 * place, floor - 5 * value, start + 13 * place + 9, floor)
        picture[box[1] : box[3], box[0] : box[2]] = NUMBERS[colour]
        bars.append((f"{colour} bar", box))
    picture[floor, start - 1 : start + 49] = LINE
    regions = (tuple(bars),)
    if rng.random() < 0.5:
        place = int(rng.integers(4))
        value = values[place]
        annotated = (
            habit(value, value - 1, range(1, 10), rng) if value >= 8 else slip(value, _beside(value, 1, 10), 0.72, rng)
        )
        return Question(
            f"How tall is the {order[place]} bar?", value, str(value), str(annotated), (picture,), regions=regions
        )
    tallest = rng.random() < 0.5
    ranked = [name for _, name in sorted(zip(values, order, strict=True), reverse=tallest)]
    best, second = sorted(values, reverse=tallest)[:2]
    close = abs(best - second) == 1
    name = habit(ranked[0], ranked[1], order, rng) if close else slip(ranked[0], order, 0.72, rng)
    prompt = f"Which bar is {'tallest' if tallest else 'shortest'}?"
    return Question(prompt, ranked[0], ranked[0], name, (picture,), regions=regions)


def puzzle(rng: np.random.Generator) -> Question:
    """Ask which of four things is of another colour or shape. Annotators fall for one that is merely larger."""
    usual = KINDS[rng.integers(len(KINDS))]
    other = [kind for kind in KINDS if (kind[0] == usual[0]) != (kind[1] == usual[1])]
    odd = other[rng.integers(len(other))]
    at, decoy = (int(n) for n in rng.permutation(4)[:2])
    tricky = rng.random() < 0.25
    picture, regions = blank(), []
    for place in range(4):
        side = 23 if tricky and place == decoy else int(rng.integers(11, 17))
        left, top = (28 * (place % 2), 28 * (place // 2))
        dx, dy = rng.integers(2, 27 - side, 2).tolist()
        kind = odd if place == at else usual
        regions.append((named(kind), paint(picture, kind, left + dx, top + dy, side)))
    annotated = habit(at, decoy, range(4), rng) if tricky else slip(at, range(4), 0.72, rng)
    options = ", ".join(f"{letter} {place}" for letter, place in zip("ABCD", PLACES, strict=True))
    prompt, right, metadata = f"Which is the odd one out? {options}.", "ABCD"[at], {"choices": list(PLACES)}
    return Question(prompt, right, right, "ABCD"[annotated], (picture,), metadata, (tuple(regions),))


def video(rng: np.random.Generator) -> Question:
    """Ask which way a thing moves in four frames, beside one that stands or moves too. Annotators mix the two up."""
    first, second = (KINDS[n] for n in rng.permutation(len(KINDS))[:2])
    way, other = (list(MOVES)[n] for n in rng.permutation(4)[:2])
    both = rng.random() < 0.3
    frames = [blank() for _ in range(FRAMES)]
    steps = rng.integers(5, 9, 2).tolist()
    tracks = tracks_of(((way, steps[0]), (other if both else None, steps[1])), rng)
    regions: list[list[Region]] = [[] for _ in range(FRAMES)]
    for kind, (left, top, dx, dy, side) in zip((second, first), tracks[::-1], strict=True):
        for number, frame in enumerate(frames):
            box = paint(frame, kind, left + number * dx, top + number * dy, side)
            regions[number].append((named(kind), box))
    names = list(MOVES)
    annotated = habit(way, other, names, rng) if both else slip(way, names, 0.72, rng)
    letters = dict(zip(names, "ABCD", strict=True))
    options = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    prompt, right, metadata = f"Which way does the {named(first)} move? {options}.", letters[way], {"choices": names}
    return Question(prompt, right, right, letters[annotated], tuple(frames), metadata, tuple(map(tuple, regions)))


def math(rng: np.random.Generator) -> Question:
    """Sums and differences of single digits, without a picture. Annotators forget to carry."""
    a, b = (int(n) for n in rng.integers(0, 10, 2))
    if rng.random() < 0.5:
        value, prompt = a + b, f"What is {a} + {b}?"
        annotated = (
            habit(value, value - 10, range(19), rng) if value >= 12 else slip(value, _beside(value, 0, 19), 0.72, rng)
        )
        return Question(prompt, value, str(value), str(annotated))
    a, b = max(a, b), min(a, b)
    value, prompt = a - b, f"What is {a} - {b}?"
    annotated = habit(value, value + 1, range(10), rng) if value >= 6 else slip(value, _beside(value, 0, 10), 0.72, rng)
    return Question(prompt, value, str(value), str(annotated))


QUESTIONS: dict[str, Callable[[np.random.Generator], Question]] = {
    "grounding": grounding,
    "detection": detection,
    "counting": counting,
    "ocr": ocr,
    "chart": chart,
    "puzzle": puzzle,
    "video-qa": video,
    "math": math,
}

IN_PIXELS = {"space": "pixel", "size": [PIXELS, PIXELS]}
"""The unit of the coordinates of a box or a point."""


def box_answer(box: Box) -> str:
    """Return a box as Qwen-VL writes it."""
    return json.dumps([{"bbox_2d": list(box)}])


def boxes_answer(found: Sequence[tuple[Box, str]]) -> str:
    """Boxes with their labels."""
    return json.dumps([{"bbox_2d": list(box), "label": label} for box, label in found])


def named(kind: Kind) -> str:
    """As prompts and labels call a thing: `red circle`."""
    return f"{kind[0]} {kind[1]}"


def _things(count: int, rng: np.random.Generator) -> tuple[list[Kind], list[Box], Picture]:
    kinds = [KINDS[n] for n in rng.permutation(len(KINDS))[:count]]
    sides = rng.integers(14, 23, count).tolist()
    picture = blank()
    boxes = [
        paint(picture, kind, left, top, side)
        for kind, side, (left, top) in zip(kinds, sides, scatter(sides, rng), strict=True)
    ]
    return kinds, boxes, picture


def tracks_of(
    movers: Sequence[tuple[str | None, int]], rng: np.random.Generator
) -> list[tuple[int, int, int, int, int]]:
    """Return (left, top, step to the right, step down, side) of things that stay inside and never meet.

    Each thing has its way and the pixels of a step; without a way it stands.
    """
    while True:
        tracks = []
        for way, step in movers:
            side = int(rng.integers(11, 16))
            dx, dy = (step * each for each in MOVES[way]) if way else (0, 0)
            room = PIXELS - side - 3 * step - 1
            left, top = (
                int(rng.integers(1, room if dx else PIXELS - side)),
                int(rng.integers(1, room if dy else PIXELS - side)),
            )
            tracks.append((left + 3 * step * (dx < 0), top + 3 * step * (dy < 0), dx, dy, side))
        if not any(_meet(*(_at(track, number) for track in tracks)) for number in range(FRAMES)):
            return tracks


def _at(track: tuple[int, int, int, int, int], number: int) -> Box:
    left, top, dx, dy, side = track
    left, top = left + number * dx, top + number * dy
    return left, top, left + side, top + side


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _loose(box: Box, rng: np.random.Generator) -> Box:
    """A box drawn carelessly: each side lies two pixels further out, give or take one and a half."""
    out = np.rint(rng.normal(2.0, 1.5, 4)).astype(int).tolist()
    x1, y1, x2, y2 = box
    return (
        min(max(0, x1 - out[0]), x2 - 2),
        min(max(0, y1 - out[1]), y2 - 2),
        max(min(PIXELS, x2 + out[2]), x1 + 2),
        max(min(PIXELS, y2 + out[3]), y1 + 2),
    )


def _beside(value: int, low: int, high: int) -> list[int]:
    return [near for near in (value - 1, value + 1) if low <= near < high]


def slip(right: Any, others: Sequence[Any], share: float, rng: np.random.Generator) -> Any:
    """The right answer with probability `share`, else any of the others."""
    wrong = [other for other in others if other != right]
    return right if rng.random() < share else wrong[rng.integers(len(wrong))]


def habit(right: Any, wrong: Any, others: Sequence[Any], rng: np.random.Generator) -> Any:
    """The habitual mistake more often than the right answer, and now and then another one."""
    drawn = rng.random()
    if drawn < HABIT:
        return wrong
    return right if drawn < HABIT + SPARED else slip(right, others, 0.0, rng)
