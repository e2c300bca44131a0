"""A small renderer: charts and tables of letters as pictures of 56×56 pixels, from data or from an answer's text.

It draws the pictures of the questions, and can draw what an answer describes, for a comparison of two pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.tables import ParsedTable, parse_table
from mmrl_shapeworld.vqa.canvas import INK, LINE, PIXELS, Picture, blank, colours_of
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import Box, Region
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS

UNIT = 5
"""Pixels of a unit of a bar."""
HIGHEST = 9
"""The largest value of a bar."""
MOST_BARS, MOST_ROWS = 4, 2
Cell = tuple[str, int, int]
"""A letter, and the columns and rows that its cell spans."""


def draw_chart(
    data: Sequence[tuple[str, int]],  # colour and value of each bar, in order
    sideways: bool = False,
    at: tuple[int, int] = (2, 3),  # pixels before the first bar, and below the bars
) -> tuple[Picture, tuple[Region, ...]]:
    """Return a chart of upright bars from left to right, or of `sideways` bars from top to bottom, and its bars."""
    picture, regions = blank(), []
    start, margin = at
    floor = PIXELS - 1 - margin
    for place, (colour, value) in enumerate(data):
        first = start + 13 * place
        box: Box = (first, floor - UNIT * value, first + 9, floor)
        if sideways:
            box = (PIXELS - 1 - floor, first, PIXELS - 1 - floor + UNIT * value, first + 9)
        picture[box[1] : box[3], box[0] : box[2]] = COLOUR_NUMBERS[colour]
        regions.append((f"{colour} bar", box))
    if sideways:
        picture[:, PIXELS - 2 - floor] = LINE
    else:
        picture[floor] = LINE
    return picture, tuple(regions)


def draw_table(
    rows: Sequence[Sequence[Cell]],
    ink: int = INK,
    offset: tuple[int, int] = (0, 0),  # pixels from the left and from the top
) -> tuple[Picture, tuple[Region, ...]]:
    """Return a ruled table of letters and where they stand; a letter stands in the middle of its cell.

    Raises:
        ValueError: The table has more than two rows or three columns, or overlapping cells.
    """
    places: dict[tuple[int, int], Cell] = {}
    taken: set[tuple[int, int]] = set()
    for row, cells in enumerate(rows):
        column = 0
        for cell in cells:
            while (row, column) in taken:
                column += 1
            places[row, column] = cell
            taken |= {(row + down, column + right) for down in range(cell[2]) for right in range(cell[1])}
            column += cell[1]
    height, width = (max((at[n] for at in taken), default=0) + 1 for n in (0, 1))
    if height > MOST_ROWS or width > 3 or len(taken) != sum(cell[1] * cell[2] for cell in places.values()):
        raise ValueError(
            f"a table of {height} rows and {width} columns: it has at most {MOST_ROWS} and 3, and no overlaps"
        )
    scale, side = (3, 28) if width < 3 else (2, 18)
    picture, regions = blank(), []
    left, top = offset
    for (row, column), (letter, across, down) in places.items():
        x1, y1 = left + side * column, top + 28 * row
        x2, y2 = min(x1 + side * across, PIXELS - 1), min(y1 + 28 * down, PIXELS - 1)
        picture[[y1, y2], x1 : x2 + 1] = LINE
        picture[y1 : y2 + 1, [x1, x2]] = LINE
        x, y = (x1 + x2 - scale * WIDTH + 1) // 2, (y1 + y2 - scale * HEIGHT + 1) // 2
        picture[y : y + scale * HEIGHT, x : x + scale * WIDTH][written(letter, scale)] = ink
        regions.append((letter, (x, y, x + scale * WIDTH, y + scale * HEIGHT)))
    return picture, tuple(regions)


def draw_lines(
    lines: Sequence[str],
    ink: int = INK,
    paper: int = 0,
    offset: tuple[int, int] = (0, 0),  # pixels from the left and from the top
    scale: int = 2,
) -> tuple[Picture, tuple[Region, ...]]:
    """Return a page of lines of letters, and where each letter stands."""
    picture = blank()
    picture[:] = paper
    regions = []
    for number, line in enumerate(lines):
        dots, top = written(line, scale), offset[1] + scale * (HEIGHT + 2) * number
        picture[top : top + len(dots), offset[0] : offset[0] + dots.shape[1]][dots] = ink
        for place, letter in enumerate(line):
            x = offset[0] + scale * (WIDTH + 1) * place
            regions.append((letter, (x, top, x + scale * WIDTH, top + scale * HEIGHT)))
    return picture, tuple(regions)


def render_answer(text: str) -> Picture:
    """Return the picture that an answer describes: a chart if the cells are colours and values, else a table.

    Raises:
        InvalidAnswer: There is no table, or one that cannot be drawn.
    """
    table = parse_table(text.replace("<0x0A>", "\n"))
    grid = table.grid()
    try:
        if len(grid) > 1 and all(len(row) == 2 for row in grid) and all(row[0] in COLOUR_NUMBERS for row in grid[1:]):
            data = [(colour, int(value)) for colour, value in grid[1:]]
            if len(data) > MOST_BARS or not all(0 < value <= HIGHEST for _, value in data):
                raise ValueError(f"a chart of {len(data)} bars: it has 1 to {MOST_BARS}, of 1 to {HIGHEST} units")
            return draw_chart(data)[0]
        cells = drawable_cells(table)
        if unknown := {letter for row in cells for letter, _, _ in row} - set(LETTERS):
            raise ValueError(f"no letter is called {min(unknown)!r}: the letters are {''.join(LETTERS)}")
        return draw_table(cells)[0]
    except ValueError as err:
        raise InvalidAnswer(str(err)) from None


def render_image(text: str) -> Image.Image:
    """Return `render_answer(text)` in colours.

    Raises:
        InvalidAnswer: There is no table, or one that cannot be drawn.
    """
    return Image.fromarray(colours_of(render_answer(text)))


def drawable_cells(table: ParsedTable) -> list[list[Cell]]:
    """Return the rows of a table without the empty cells that LaTeX has below a cell that spans rows."""
    rows, spans = [], False
    for row in (row for section in table.sections for row in section.rows):
        rows.append([(cell.text, cell.colspan, cell.rowspan) for cell in row if cell.text or not spans])
        spans = any(cell.rowspan > 1 for cell in row)
    return rows


def difference(first: Picture, second: Picture) -> float:
    """Return the share of the pixels that differ, in [0, 1], among those that show anything in either picture."""
    drawn = (first > 0) | (second > 0)
    return float((first != second)[drawn].mean()) if np.any(drawn) else 0.0
