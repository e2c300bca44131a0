"""Things that are to be moved to a grey box: which of them, which way, and to which point.

The circles are the movers, two of three things of different colours. A plan names their colours from left to right, for
each the side to which it has to go, and the middle of the box: `red, blue; right, left; 30, 12`.
"""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.captions import Kind
from mmrl_shapeworld.scenes import COLOURS
from mmrl_shapeworld.vqa.canvas import LINE, PIXELS, blank, paint, scatter
from mmrl_shapeworld.vqa.questions import Box, Question, named, slip

SIDE = 10
"""Pixels of the box's side."""
WAYS = ("left", "right")
MOVER, OTHERS, MOVERS = "circle", ("square", "triangle"), 2


def movers(rng: np.random.Generator) -> Question:
    """Ask for a plan. Annotators take a wrong thing one time in five, and the other way one time in four."""
    colours = [list(COLOURS)[n] for n in rng.permutation(len(COLOURS))[:3]]
    shapes = [MOVER] * MOVERS + [OTHERS[n] for n in rng.integers(len(OTHERS), size=3 - MOVERS)]
    kinds: list[Kind] = list(zip(colours, shapes, strict=True))
    sides = [*rng.integers(11, 15, 3).tolist(), SIDE]
    *corners, (left, top) = scatter(sides, rng)
    picture = blank()
    boxes = [paint(picture, kind, x, y, side) for kind, (x, y), side in zip(kinds, corners, sides, strict=False)]
    picture[top : top + SIDE, left : left + SIDE] = LINE
    middle = (left + SIDE // 2, top + SIDE // 2)
    order = sorted(range(MOVERS), key=lambda number: boxes[number])
    agents = [colours[number] for number in order]
    steps = [_way(boxes[number], middle) for number in order]
    near = [slip(agent, colours, 0.8, rng) for agent in agents]
    wandering = [slip(step, WAYS, 0.75, rng) for step in steps]
    loose = [int(np.clip(value + rng.integers(-4, 5), 0, PIXELS - 1)) for value in middle]
    answer = {"agents": agents, "steps": steps, "points": [list(middle)]}
    regions = tuple((named(kind), box) for kind, box in zip(kinds, boxes, strict=True))
    right, annotated = _plan(agents, steps, middle), _plan(near, wandering, loose)
    return Question("Move the circles.", answer, right, annotated, (picture,), {"movers": MOVERS}, (regions,))


def _way(box: Box, goal: tuple[int, int]) -> str:
    return "right" if goal[0] > (box[0] + box[2]) / 2 else "left"


def _plan(agents: list[str], steps: list[str], goal: tuple[int, int] | list[int]) -> str:
    return f"{', '.join(agents)}; {', '.join(steps)}; {goal[0]}, {goal[1]}"
