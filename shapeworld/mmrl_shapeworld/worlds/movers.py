"""Things that are to be moved to a grey box: which of them, which way first, and to which point.

The circles are the movers, one or two of three things of different colours. A plan names their colours from left to
right, for each the direction in which it has farther to go, and the middle of the box: `red, blue; left, up; 30, 12`.
"""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.captions import Kind
from mmrl_shapeworld.scenes import COLOURS
from mmrl_shapeworld.vqa.canvas import LINE, PIXELS, blank, paint, scatter
from mmrl_shapeworld.vqa.questions import Box, Question, named, slip

SIDE = 10
"""Pixels of the box's side."""
WAYS = ("left", "right", "up", "down")
MOVER, OTHERS = "circle", ("square", "triangle")


def movers(rng: np.random.Generator) -> Question:
    """Ask for a plan. Annotators take a wrong thing one time in five, and go another way one time in four."""
    colours = [list(COLOURS)[n] for n in rng.permutation(len(COLOURS))[:3]]
    count = int(rng.integers(1, 3))
    shapes = [MOVER] * count + [OTHERS[n] for n in rng.integers(len(OTHERS), size=3 - count)]
    kinds: list[Kind] = list(zip(colours, shapes, strict=True))
    sides = [*rng.integers(11, 15, 3).tolist(), SIDE]
    *corners, (left, top) = scatter(sides, rng)
    picture = blank()
    boxes = [paint(picture, kind, x, y, side) for kind, (x, y), side in zip(kinds, corners, sides, strict=False)]
    picture[top : top + SIDE, left : left + SIDE] = LINE
    middle = (left + SIDE // 2, top + SIDE // 2)
    order = sorted(range(count), key=lambda number: boxes[number])
    agents = [colours[number] for number in order]
    steps = [_way(boxes[number], middle) for number in order]
    near = [slip(agent, colours, 0.8, rng) for agent in agents]
    wandering = [slip(step, WAYS, 0.75, rng) for step in steps]
    loose = [int(np.clip(value + rng.integers(-4, 5), 0, PIXELS - 1)) for value in middle]
    answer = {"agents": agents, "steps": steps, "points": [list(middle)]}
    regions = tuple((named(kind), box) for kind, box in zip(kinds, boxes, strict=True))
    right, annotated = _plan(agents, steps, middle), _plan(near, wandering, loose)
    return Question("Move the circles.", answer, right, annotated, (picture,), {"movers": count}, (regions,))


def _way(box: Box, goal: tuple[int, int]) -> str:
    across, down = goal[0] - (box[0] + box[2]) / 2, goal[1] - (box[1] + box[3]) / 2
    if abs(across) >= abs(down):
        return "right" if across > 0 else "left"
    return "down" if down > 0 else "up"


def _plan(agents: list[str], steps: list[str], goal: tuple[int, int] | list[int]) -> str:
    return f"{', '.join(agents)}; {', '.join(steps)}; {goal[0]}, {goal[1]}"
