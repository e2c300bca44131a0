"""Documents of three kinds, each with another reward: charts read as tables, nested tables, and pages of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mmrl_shapeworld.vqa.canvas import INK, NUMBERS, PIXELS, SKY
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH
from mmrl_shapeworld.vqa.questions import Question, habit, slip
from mmrl_shapeworld.worlds.table_renderer import HIGHEST, Cell, draw_chart, draw_lines, draw_table
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_COLOURS, UNSEEN_COLOURS

HEADER, BREAK = "bar | height <0x0A> ", " <0x0A> "
"""The first line of a chart's table, and the end of every line, as DePlot writes them."""
FLAT = 0.6
"""The share of annotators who write the letter of a cell that spans columns in each of them."""


def chart_table(rng: np.random.Generator) -> Question:
    """Ask for the data of three or four upright bars. Annotators read one value in three wrong, and most above six."""
    return _chart(SEEN_COLOURS, int(rng.integers(3, 5)), False, rng)


def sideways_chart(rng: np.random.Generator) -> Question:
    """Ask for the data of three bars that lie on their sides."""
    return _chart(SEEN_COLOURS, 3, True, rng)


def unseen_chart(rng: np.random.Generator) -> Question:
    """Ask for the data of four upright bars, two of which have unseen colours."""
    return _chart((*UNSEEN_COLOURS, *rng.permutation(SEEN_COLOURS)[:2].tolist()), 4, False, rng)


def chart_data(rng: np.random.Generator) -> Question:
    """Ask for the data of three or four upright bars, which were written down in another order than they were drawn."""
    return _chart(SEEN_COLOURS, int(rng.integers(3, 5)), False, rng, any_order=True)


def sideways_data(rng: np.random.Generator) -> Question:
    """Ask for the data of three bars that lie on their sides, which were written down in another order."""
    return _chart(SEEN_COLOURS, 3, True, rng, any_order=True)


def nested_table(rng: np.random.Generator) -> Question:
    """Ask for a table of one or two rows, in which a cell of the first or the last row may span both columns.

    Annotators more often than not write the letter of such a cell twice, and misread letters as those of a page.
    """
    forms: tuple[tuple[tuple[tuple[int, int], ...], ...], ...] = (
        (((1, 1), (1, 1)),),
        (((1, 1), (1, 1)), ((1, 1), (1, 1))),
        (((2, 1),), ((1, 1), (1, 1))),
        (((1, 1), (1, 1)), ((2, 1),)),
    )
    return _table(forms[rng.integers(len(forms))], rng)


def unseen_nesting(rng: np.random.Generator) -> Question:
    """Ask for a table in which the first or the last cell spans both rows, or of three columns."""
    forms: tuple[tuple[tuple[tuple[int, int], ...], ...], ...] = (
        (((1, 2), (1, 1)), ((1, 1),)),
        (((2, 1), (1, 1)), ((1, 1), (1, 1), (1, 1))),
    )
    return _table(forms[rng.integers(len(forms))], rng)


def page(rng: np.random.Generator) -> Question:
    """Ask for the text of two lines of two or three letters. Annotators take C for O, E for F and K for X."""
    ink = int(rng.choice([INK, *NUMBERS.values()]))
    return _page((int(rng.integers(2, 4)), int(rng.integers(2, 4))), ink, 0, 3, rng)


def unseen_page(rng: np.random.Generator) -> Question:
    """Ask for the text of three lines of two smaller letters, on paper of an unseen colour."""
    return _page((2, 2, 2), int(COLOUR_NUMBERS[UNSEEN_COLOURS[1]]), SKY, 2, rng)


def deplot(data: Sequence[tuple[str, int]]) -> str:
    """Return the data of a chart as a table in DePlot's lines."""
    return HEADER + BREAK.join(f"{colour} | {value}" for colour, value in data)


def nested_latex(rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table as LaTeX; a cell spans several columns or several rows, but not both."""
    columns = sum(across for _, across, _ in rows[0])
    lines, below = [], 0
    for cells in rows:
        texts = [""] * below if below and len(cells) < columns else []
        for letter, across, down in cells:
            spanning = f"\\multicolumn{{{across}}}{{c}}{{{letter}}}" if across > 1 else letter
            texts.append(f"\\multirow{{{down}}}{{*}}{{{letter}}}" if down > 1 else spanning)
        below = sum(down > 1 for _, _, down in cells)
        lines.append("&".join(texts))
    joined = "\\\\".join(lines)
    return f"\\begin{{tabular}}{{{'c' * columns}}}{joined}\\end{{tabular}}"


def multicolumn_cells(code: str) -> str:
    r"""Return a table's code with a \multicolumn for each cell, also for those of one column: it looks the same.

    >>> print(multicolumn_cells(r"\begin{tabular}{cc}\multicolumn{2}{c}{L}\\X&C\end{tabular}"))
    \begin{tabular}{cc}\multicolumn{2}{c}{L}\\\multicolumn{1}{c}{X}&\multicolumn{1}{c}{C}\end{tabular}
    """
    return re.sub(r"(?<=[}&\\])([A-Z])(?=[&\\])", r"\\multicolumn{1}{c}{\1}", code)


def without_spans(code: str) -> str:
    r"""Return a table's code with the letter of a cell that spans two columns in each of them.

    >>> print(without_spans(r"\begin{tabular}{cc}\multicolumn{2}{c}{L}\\X&C\end{tabular}"))
    \begin{tabular}{cc}L&L\\X&C\end{tabular}
    """
    return re.sub(r"\\multicolumn\{2\}\{c\}\{([A-Z])\}", r"\1&\1", code)


def misread(letter: str, rng: np.random.Generator) -> str:
    """Return what a careless annotator reads for a letter."""
    taken = {"C": "O", "E": "F", "K": "X"}.get(letter)
    return str(habit(letter, taken, LETTERS, rng) if taken else slip(letter, LETTERS, 0.75, rng))


def _letters(count: int, rng: np.random.Generator) -> str:
    return "".join(LETTERS[n] for n in rng.integers(len(LETTERS), size=count))


def _chart(
    colours: Sequence[str], count: int, sideways: bool, rng: np.random.Generator, any_order: bool = False
) -> Question:
    order = [str(colours[n]) for n in rng.permutation(len(colours))[:count]]
    data = [(colour, int(value)) for colour, value in zip(order, rng.integers(1, HIGHEST + 1, count), strict=True)]
    at = (int(rng.integers(1, PIXELS - 13 * count + 3)), int(rng.integers(1, 8)))
    picture, regions = draw_chart(data, sideways, at)
    near = [(slip(colour, order, 0.95, rng), _read_off(value, rng)) for colour, value in data]
    if any_order:
        rows = rng.permutation(count).tolist()
        data, near = [data[row] for row in rows], [near[row] for row in rows]
    right = deplot(data)
    return Question("Write the chart as a table.", right, right, deplot(near), (picture,), regions=(regions,))


def _read_off(value: int, rng: np.random.Generator) -> int:
    """Return what a careless annotator reads for a value."""
    beside = [near for near in (value - 1, value + 1) if 0 < near <= HIGHEST]
    return int(habit(value, value - 1, beside, rng) if value > 6 else slip(value, beside, 0.66, rng))


def _table(form: Sequence[Sequence[tuple[int, int]]], rng: np.random.Generator) -> Question:
    rows = [[(_letters(1, rng), across, down) for across, down in cells] for cells in form]
    columns, height = sum(across for _, across, _ in rows[0]), len(rows)
    offset = (0 if columns > 1 else int(rng.integers(0, 28)), 0 if height > 1 else int(rng.integers(0, 28)))
    picture, regions = draw_table(rows, int(rng.choice([INK, *NUMBERS.values()])), offset)
    read = [[(misread(letter, rng), across, down) for letter, across, down in cells] for cells in rows]
    flat = [[cell for letter, across, down in cells for cell in [(letter, 1, down)] * across] for cells in read]
    annotated = nested_latex(flat if rng.random() < FLAT else read)
    right = nested_latex(rows)
    return Question("Write the table.", right, right, annotated, (picture,), regions=(regions,))


def _page(lengths: Sequence[int], ink: int, paper: int, scale: int, rng: np.random.Generator) -> Question:
    lines = [_letters(length, rng) for length in lengths]
    room = (PIXELS - scale * (WIDTH + 1) * max(lengths), PIXELS - scale * (HEIGHT + 2) * len(lengths))
    offset = (int(rng.integers(0, room[0] + 1)), int(rng.integers(0, room[1] + 1)))
    picture, regions = draw_lines(lines, ink, paper, offset, scale)
    read = ["".join(misread(letter, rng) for letter in line) for line in lines]
    return Question("Read the page.", " ".join(lines), " ".join(lines), " ".join(read), (picture,), regions=(regions,))
