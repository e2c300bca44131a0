"""What a table is, however it is written: sections of rows of cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mmrl.rewards.base import InvalidAnswer

MOST_CELLS = 10_000
"""Cells past which a table is not read, nor one whose spans reach over more."""
LONGEST = 200_000
"""Characters past which a text is not read for a table."""

SectionName: TypeAlias = Literal["thead", "tbody", "tfoot"]


@dataclass(frozen=True)
class Cell:
    """One cell. Its content is characters, and tags such as "<b>" as one piece each."""

    content: tuple[str, ...] = ()
    header: bool = False
    colspan: int = 1
    rowspan: int = 1

    @property
    def text(self) -> str:
        """The content without tags, but for a space where a line breaks."""
        shown = (" " if piece == "<br>" else piece for piece in self.content)
        return "".join(piece for piece in shown if len(piece) == 1)


Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True)
class Section:
    """Rows that belong together."""

    name: SectionName
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table; `caption` is None where there is none."""

    sections: tuple[Section, ...]
    caption: tuple[str, ...] | None = None

    def grid(self) -> list[list[str]]:
        """The texts of all rows; a cell that spans several places stands in each of them.

        Raises:
            InvalidAnswer: spans that reach over more than `MOST_CELLS`.
        """
        rows: list[list[str]] = []
        held: dict[int, tuple[int, str]] = {}  # column: rows that a cell above still reaches over, and its text
        cells = 0
        for row in (row for section in self.sections for row in section.rows):
            places: dict[int, str] = {column: text for column, (left, text) in held.items() if left}
            held = {column: (left - 1, text) for column, (left, text) in held.items() if left}
            column = 0
            for cell in row:
                while column in places:
                    column += 1
                cells += cell.colspan * cell.rowspan
                if cells > MOST_CELLS:
                    raise InvalidAnswer(f"the table reaches over more than {MOST_CELLS} places")
                for _ in range(cell.colspan):
                    places[column] = cell.text
                    if cell.rowspan > 1:
                        held[column] = (cell.rowspan - 1, cell.text)
                    column += 1
            rows.append([places.get(column, "") for column in range(max(places, default=-1) + 1)])
        return rows


class Tag(str):
    """A tag in a cell's content, which the same characters written as text (&lt;b&gt;) are not."""


def contents(pieces: Iterable[str]) -> tuple[str, ...]:
    """A cell's content out of its texts and tags: a tag is one piece, a run of white space one space, none at the ends.

    Canonically equivalent characters are one (NFC).
    """
    made: list[str] = []
    gap = False
    for piece in pieces:
        for part in [piece] if isinstance(piece, Tag) else unicodedata.normalize("NFC", piece):
            if part.isspace():
                gap = True
                continue
            if gap and made:
                made.append(" ")
            gap = False
            made.append(part)
    return tuple(made)
