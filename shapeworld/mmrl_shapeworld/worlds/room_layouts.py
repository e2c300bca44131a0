"""Rooms in which a policy places things around a table, and the rules that a layout is measured by.

A room of 56×56 pixels has a grey table, and at first a heap of three coloured blocks. The prompt names a side of the
table for each (`the red left, the blue top, the green right.`). A layout is free of collisions where no block covers
another, the table or a wall; pixels that two things cover are dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmrl_shapeworld.vqa.canvas import INK, LINE, PIXELS, Picture, blank
from mmrl_shapeworld.vqa.questions import Box
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_COLOURS, UNSEEN_COLOURS

Point = tuple[float, float]
SIDES: Mapping[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
"""The sides of the table and their directions, right and down."""
BLOCKS = 3
SMALLEST, LARGEST = 7, 12
"""The sides of a block in pixels, the largest excluded."""
TABLE = (10, 17)
"""The sides of a table in pixels, the largest excluded."""
MARGIN = 14
"""The least distance of a table from a wall, in pixels."""
REACH = 10.0
"""The largest distance of a block's middle from the edge of the table at its side, in pixels."""


@dataclass(frozen=True)
class Block:
    """A block to place."""

    colour: str
    width: int
    height: int
    side: str
    """The side of the table where it belongs."""
    heap: tuple[int, int]
    """x and y of its middle in the heap."""


@dataclass(frozen=True)
class Room:
    """A table and the blocks, in the order of the prompt."""

    table: Box
    blocks: tuple[Block, ...]

    @property
    def prompt(self) -> str:
        """The places in words."""
        return f"{', '.join(f'the {block.colour} {block.side}' for block in self.blocks)}."

    @property
    def heap(self) -> tuple[Point, ...]:
        """The middles of the blocks at first."""
        return tuple((float(x), float(y)) for x, y in (block.heap for block in self.blocks))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {"table": list(self.table), "blocks": [{**asdict(b), "heap": list(b.heap)} for b in self.blocks]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Room:
        """Return the room of `as_dict`.

        Raises:
            ValueError: the data are not those of a room.
        """
        try:
            blocks = tuple(Block(**{**block, "heap": tuple(block["heap"])}) for block in data["blocks"])
            room = cls(tuple(data["table"]), blocks)
            known = all(block.colour in COLOUR_NUMBERS and block.side in SIDES for block in blocks)
            numbers = [*room.table, *(n for b in blocks for n in (b.width, b.height, *b.heap))]
            fits = len(room.table) == 4 and all(len(block.heap) == 2 for block in blocks)
        except (KeyError, TypeError) as err:
            raise ValueError(f"no room: {err}") from None
        if not (known and fits and blocks and all(isinstance(n, int) and 0 <= n <= PIXELS for n in numbers)):
            raise ValueError(f"no room: {data!r:.200}")
        return room


@dataclass(frozen=True)
class LayoutMeasures:
    """Shares of the blocks that are right in a layout."""

    free: float
    """Blocks that cover neither another, nor the table, nor a wall: the physics of a layout."""
    related: float
    """Blocks beside their side of the table, at most `REACH` from its edge, even if they cover something."""
    success: bool
    """All blocks are free and at their side."""


def sample_room(rng: np.random.Generator, unseen: bool = False) -> Room:
    """Sample a room whose blocks all have a place; `unseen`: one of them has an unseen colour."""
    while True:
        width, height = rng.integers(*TABLE, 2).tolist()
        left, top = (int(rng.integers(MARGIN, PIXELS - MARGIN - side + 1)) for side in (width, height))
        colours = [SEEN_COLOURS[n] for n in rng.permutation(len(SEEN_COLOURS))[:BLOCKS]]
        if unseen:
            colours[int(rng.integers(BLOCKS))] = UNSEEN_COLOURS[int(rng.integers(len(UNSEEN_COLOURS)))]
        sides = [list(SIDES)[n] for n in rng.permutation(len(SIDES))[:BLOCKS]]
        blocks = []
        for colour, side in zip(colours, sides, strict=True):
            across, down = rng.integers(SMALLEST, LARGEST, 2).tolist()
            heap = tuple(int(rng.integers(half, PIXELS - half)) for half in (across // 2 + 1, down // 2 + 1))
            blocks.append(Block(colour, across, down, side, (heap[0], heap[1])))
        room = Room((left, top, left + width, top + height), tuple(blocks))
        if measures_of(room, right_layout(room)).success:
            return room


def right_layout(room: Room) -> tuple[Point, ...]:
    """Return the middles of the blocks one pixel away from the middle of their side of the table."""
    x1, y1, x2, y2 = room.table
    found = []
    for block in room.blocks:
        right, down = SIDES[block.side]
        away = (block.width if right else block.height) / 2 + 1
        x = (x1 + x2) / 2 if not right else (x2 if right > 0 else x1) + right * away
        y = (y1 + y2) / 2 if not down else (y2 if down > 0 else y1) + down * away
        found.append((x, y))
    return tuple(found)


def boxes_of(room: Room, layout: Sequence[Point]) -> list[Box]:
    """Return the box of each block whose middle is at a point, in whole pixels."""
    boxes = []
    for block, (x, y) in zip(room.blocks, layout, strict=True):
        left, top = round(x - block.width / 2), round(y - block.height / 2)
        boxes.append((left, top, left + block.width, top + block.height))
    return boxes


def measures_of(room: Room, layout: Sequence[Point]) -> LayoutMeasures:
    """Return what is right in a layout, the middles of the blocks in pixels."""
    boxes = boxes_of(room, layout)
    solid = [room.table, *boxes]
    free = [
        _inside(box) and not any(_overlap(box, other) for number, other in enumerate(solid) if number != place + 1)
        for place, box in enumerate(boxes)
    ]
    related = [_at_side(room.table, block.side, box) for block, box in zip(room.blocks, boxes, strict=True)]
    both = all(free) and all(related)
    return LayoutMeasures(sum(free) / len(free), sum(related) / len(related), both)


def draw_room(room: Room, layout: Sequence[Point]) -> Picture:
    """Return [56, 56]: the table and the blocks, dark where two of them lie; what is beyond a wall is cut off."""
    picture, covered = blank(), np.zeros((PIXELS, PIXELS), np.int64)
    colours = [LINE, *(COLOUR_NUMBERS[block.colour] for block in room.blocks)]
    for colour, (x1, y1, x2, y2) in zip(colours, [room.table, *boxes_of(room, layout)], strict=True):
        part = slice(max(0, y1), max(0, y2)), slice(max(0, x1), max(0, x2))
        picture[part] = colour
        covered[part] += 1
    picture[covered > 1] = INK
    return picture


def _inside(box: Box) -> bool:
    return min(box) >= 0 and max(box) <= PIXELS


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _at_side(table: Box, side: str, box: Box) -> bool:
    """Return whether the middle of a box is beyond the edge of the table at a side, and within reach of it."""
    x1, y1, x2, y2 = table
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    right, down = SIDES[side]
    beyond = right * (x - (x2 if right > 0 else x1)) if right else down * (y - (y2 if down > 0 else y1))
    beside = y1 <= y <= y2 if right else x1 <= x <= x2
    return beside and 0 < beyond <= REACH
