"""Reading a table out of HTML, strictly and in linear time.

Python's own parser takes time in the square of the length of bad input (30,000 times "<!--": a minute), so tags are
found here by one bounded pattern. As browsers do, cells and rows may be left open, and rows that stand in no section
are in a <tbody>. What browsers would repair otherwise is refused.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from mmrl.rewards.base import InvalidAnswer
from mmrl.rewards.parsing.table_model import MOST_CELLS, Cell, Row, Section, SectionName, Table, Tag, contents

_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]{0,20})(\s[^<>]{0,500}|/)?>")
_SPAN = re.compile(r"(?<![\w-])(colspan|rowspan)\s?=\s?([\"']?)([^\s\"'>/]{0,20})\2", re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,2}|1000")
_LONG_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{8}")
_SECTIONS: dict[str, SectionName] = {"thead": "thead", "tbody": "tbody", "tfoot": "tfoot"}
_IGNORED = {"col", "colgroup"}


def read_html(text: str) -> Table:
    """The one table in a text.

    Raises:
        InvalidAnswer: none, several, one inside of another, one that is not closed, text or tags between its cells, or
            spans that are no number from 1 to 1000.
    """
    pieces = _pieces(_without_comments(text))
    reader = _Reader()
    for kind, name, _ in pieces:
        if kind == "start" and name == "table":
            reader.read(pieces)
            break
    if not reader.closed:
        raise InvalidAnswer("there is no <table>, or it is never closed")
    if any(name == "table" for kind, name, _ in pieces if kind != "text"):
        raise InvalidAnswer("there are several tables, not one")
    return reader.table()


def _without_comments(text: str) -> str:
    first, *rest = text.split("<!--")
    for part in rest:
        if "-->" not in part:
            raise InvalidAnswer("a comment in the HTML is never closed")
        first += part.partition("-->")[2]
    return first


def _pieces(text: str) -> Iterator[tuple[str, str, str]]:
    """("text", "", text), ("start", name, attributes) and ("end", name, "")."""
    if _LONG_REFERENCE.search(text):
        raise InvalidAnswer("a character reference in the HTML is too long")
    at = 0
    for tag in _TAG.finditer(text):
        if tag.start() > at:
            yield "text", "", html.unescape(text[at : tag.start()])
        yield "end" if tag[1] else "start", tag[2].lower(), tag[3] or ""
        at = tag.end()
    if at < len(text):
        yield "text", "", html.unescape(text[at:])


class _Reader:
    """The table so far: what is open, and what is complete."""

    def __init__(self) -> None:
        self.closed = False
        self.sections: list[Section] = []
        self.section: SectionName | None = None
        self.rows: list[Row] = []
        self.row: list[Cell] | None = None
        self.cell: tuple[str, str] | None = None  # the tag, its attributes
        self.content: list[str] = []
        self.caption: tuple[str, ...] | None = None
        self.cells = 0

    def read(self, pieces: Iterator[tuple[str, str, str]]) -> None:
        """Everything up to </table>."""
        for kind, name, rest in pieces:
            if kind == "text":
                self._text(rest)
            elif kind == "start":
                self._start(name, rest)
            else:
                self._end(name)
                if name == "table":
                    self.closed = True
                    return

    def table(self) -> Table:
        """What was read."""
        return Table(tuple(self.sections), self.caption)

    def _text(self, text: str) -> None:
        if self.cell:
            self.content.append(text)
        elif text.strip():
            raise InvalidAnswer(f"the text {text.strip()[:40]!r} stands in the table, but in no cell")

    def _start(self, name: str, attributes: str) -> None:
        if name == "table":
            raise InvalidAnswer("there is a table inside of a table")
        if name in ("td", "th", "tr", "caption") or name in _SECTIONS:
            self._close_cell()
        if name in _SECTIONS:
            self._close_section()
            self.section = _SECTIONS[name]
        elif name == "tr":
            self._close_row()
            self.row = []
        elif name in ("td", "th", "caption"):
            if name == "caption" and (
                self.row is not None or self.section or self.sections or self.caption is not None
            ):
                raise InvalidAnswer("a <caption> stands elsewhere than at the start of the table")
            self.cell = (name, attributes)
        elif self.cell:
            self.content.append(Tag(f"<{name}>"))
        elif name not in _IGNORED:
            raise InvalidAnswer(f"<{name}> stands in the table, but in no cell")

    def _end(self, name: str) -> None:
        if name in ("td", "th", "caption"):
            if self.cell is None or self.cell[0] != name:
                raise InvalidAnswer(f"</{name}> closes no <{name}>")
            self._close_cell()
        elif name == "tr":
            self._close_cell()
            if self.row is None:
                raise InvalidAnswer("</tr> closes no <tr>")
            self._close_row()
        elif name in _SECTIONS:
            self._close_cell()
            if self.section != name:
                raise InvalidAnswer(f"</{name}> closes no <{name}>")
            self._close_section()
        elif name == "table":
            self._close_cell()
            self._close_section()
        elif self.cell:
            self.content.append(Tag(f"</{name}>"))
        elif name not in _IGNORED:
            raise InvalidAnswer(f"</{name}> stands in the table, but in no cell")

    def _close_cell(self) -> None:
        if self.cell is None:
            return
        (name, attributes), self.cell = self.cell, None
        content, self.content = contents(self.content), []
        if name == "caption":
            self.caption = content
            return
        self.cells += 1
        if self.cells > MOST_CELLS:
            raise InvalidAnswer(f"the table has more than {MOST_CELLS} cells")
        spans = _spans(attributes)
        self.row = self.row if self.row is not None else []
        self.row.append(Cell(content, name == "th", spans.get("colspan", 1), spans.get("rowspan", 1)))

    def _close_row(self) -> None:
        if self.row is not None:
            self.rows.append(tuple(self.row))
            self.row = None

    def _close_section(self) -> None:
        self._close_row()
        if self.rows or self.section:
            self.sections.append(Section(self.section or "tbody", tuple(self.rows)))
        self.section, self.rows = None, []


def _spans(attributes: str) -> dict[str, int]:
    spans: dict[str, int] = {}
    for match in _SPAN.finditer(attributes):
        if not _NUMBER.fullmatch(match[3]):
            raise InvalidAnswer(f"{match[0][:40]!r} is no number from 1 to 1000")
        spans.setdefault(match[1].lower(), int(match[3]))
    return spans
