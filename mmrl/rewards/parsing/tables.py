"""Parse the one table in an answer, in HTML, Markdown, DePlot's lines with bars, or LaTeX, fenced or not.

HTML is parsed strictly and in linear time. Python's `html.parser` takes time quadratic in the length of bad input
(30,000 times "<!--": a minute), so tags are found by one bounded pattern. As in browsers, cells and rows may be left
open, and rows outside a section are in a <tbody>. Everything else that browsers would repair is invalid.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.json_text import strip_fence

TableSectionName: TypeAlias = Literal["thead", "tbody", "tfoot"]

MAX_CELLS = 10_000  # largest number of cells of a table, and of places that its spans cover
MAX_CHARACTERS = 200_000  # number of characters above which a text is not searched for a table

# HTML
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]{0,20})(\s[^<>]{0,500}|/)?>")
_SPAN = re.compile(r"(?<![\w-])(colspan|rowspan)\s?=\s?([\"']?)([^\s\"'>/]{0,20})\2", re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,2}|1000")
_LONG_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{8}")
_SECTIONS: dict[str, TableSectionName] = {"thead": "thead", "tbody": "tbody", "tfoot": "tfoot"}
_IGNORED = {"col", "colgroup"}

# Markdown, DePlot and LaTeX
_RULE = re.compile(r"\s{0,9}\|?(?:\s{0,9}:?-{1,99}:?\s{0,9}\|)*\s{0,9}:?-{1,99}:?\s{0,9}\|?\s{0,9}")
_BAR = re.compile(r"(?<!\\)\|")
_BEGIN, _END = "\\begin{tabular}", "\\end{tabular}"
_LATEX_RULES = re.compile(
    r"\\(?:hline|toprule|midrule|bottomrule|(?:cline|cmidrule)(?:\([a-z]{1,4}\))?\{[0-9-]{1,9}\})"
)
_ROW_END = re.compile(r"\\\\(?:\[[^\]]{0,20}\])?")
_CELL_END = re.compile(r"(?<!\\)&")
_SPANNING = re.compile(r"\s{0,99}\\multi(column|row)\s?\{([1-9][0-9]{0,2})\}\s?\{[^{}]{0,40}\}\s?\{")


@dataclass(frozen=True)
class TableCell:
    """A cell. Its content is a tuple of characters and of tags such as "<b>"."""

    content: tuple[str, ...] = ()
    header: bool = False
    colspan: int = 1
    rowspan: int = 1

    @property
    def text(self) -> str:
        """The content without tags; <br> becomes a space."""
        pieces = (" " if piece == "<br>" else piece for piece in self.content)
        return "".join(piece for piece in pieces if len(piece) == 1)


TableRow: TypeAlias = tuple[TableCell, ...]


@dataclass(frozen=True)
class TableSection:
    """A head, body or foot of a table, with its rows."""

    name: TableSectionName
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class ParsedTable:
    """A table; `caption` is None if it has none."""

    sections: tuple[TableSection, ...]
    caption: tuple[str, ...] | None = None

    def grid(self) -> list[list[str]]:
        """Return the texts of all rows; a cell that spans several places is repeated in each of them.

        Raises:
            InvalidAnswer: the cells cover more than `MAX_CELLS` places.
        """
        rows: list[list[str]] = []
        spanning: dict[int, tuple[int, str]] = {}  # column: rows that a cell above still covers, and its text
        cells = 0
        for row in (row for section in self.sections for row in section.rows):
            places: dict[int, str] = {column: text for column, (left, text) in spanning.items() if left}
            spanning = {column: (left - 1, text) for column, (left, text) in spanning.items() if left}
            column = 0
            for cell in row:
                while column in places:
                    column += 1
                cells += cell.colspan * cell.rowspan
                if cells > MAX_CELLS:
                    raise InvalidAnswer(f"the table covers more than {MAX_CELLS} places")
                for _ in range(cell.colspan):
                    places[column] = cell.text
                    if cell.rowspan > 1:
                        spanning[column] = (cell.rowspan - 1, cell.text)
                    column += 1
            rows.append([places.get(column, "") for column in range(max(places, default=-1) + 1)])
        return rows


def parse_table(text: str) -> ParsedTable:
    """Return the one table in a text.

    A <table> makes it HTML and a tabular LaTeX; otherwise lines with bars are parsed. Prose around it is skipped.

    Raises:
        InvalidAnswer: there is no table or several, or it is not well formed.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are searched for a table")
    text = strip_fence(text)
    is_html, is_latex = "<table" in text.lower(), "\\begin{tabular}" in text
    if is_html and is_latex:
        raise InvalidAnswer("there is a table in HTML and another in LaTeX")
    if is_html:
        return parse_html_table(text)
    return parse_latex_table(text) if is_latex else parse_markdown_table(text)


def parse_html_table(text: str) -> ParsedTable:
    """Return the one HTML table in a text.

    Raises:
        InvalidAnswer: there is no table, several, a nested or an unclosed one, text or tags between its cells, or a
            span that is not a number from 1 to 1000.
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
    """Yield ("text", "", text), ("start", name, attributes) and ("end", name, "")."""
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
    """A builder of a table from HTML pieces, with the open section, row and cell."""

    def __init__(self) -> None:
        self.closed = False
        self.sections: list[TableSection] = []
        self.section: TableSectionName | None = None
        self.rows: list[TableRow] = []
        self.row: list[TableCell] | None = None
        self.cell: tuple[str, str] | None = None  # the tag, its attributes
        self.content: list[str] = []
        self.caption: tuple[str, ...] | None = None
        self.cells = 0

    def read(self, pieces: Iterator[tuple[str, str, str]]) -> None:
        """Consume the pieces up to </table>."""
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

    def table(self) -> ParsedTable:
        """Return the table that was read."""
        return ParsedTable(tuple(self.sections), self.caption)

    def _text(self, text: str) -> None:
        if self.cell:
            self.content.append(text)
        elif text.strip():
            raise InvalidAnswer(f"the text {text.strip()[:40]!r} stands in the table, but not in a cell")

    def _start(self, name: str, attributes: str) -> None:
        if name == "table":
            raise InvalidAnswer("there is a table inside a table")
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
                raise InvalidAnswer("a <caption> is not at the start of the table")
            self.cell = (name, attributes)
        elif self.cell:
            self.content.append(HTMLTag(f"<{name}>"))
        elif name not in _IGNORED:
            raise InvalidAnswer(f"<{name}> stands in the table, but not in a cell")

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
            self.content.append(HTMLTag(f"</{name}>"))
        elif name not in _IGNORED:
            raise InvalidAnswer(f"</{name}> stands in the table, but not in a cell")

    def _close_cell(self) -> None:
        if self.cell is None:
            return
        (name, attributes), self.cell = self.cell, None
        content, self.content = contents(self.content), []
        if name == "caption":
            self.caption = content
            return
        self.cells += 1
        if self.cells > MAX_CELLS:
            raise InvalidAnswer(f"the table has more than {MAX_CELLS} cells")
        spans = _spans(attributes)
        self.row = self.row if self.row is not None else []
        self.row.append(TableCell(content, name == "th", spans.get("colspan", 1), spans.get("rowspan", 1)))

    def _close_row(self) -> None:
        if self.row is not None:
            self.rows.append(tuple(self.row))
            self.row = None

    def _close_section(self) -> None:
        self._close_row()
        if self.rows or self.section:
            self.sections.append(TableSection(self.section or "tbody", tuple(self.rows)))
        self.section, self.rows = None, []


def _spans(attributes: str) -> dict[str, int]:
    spans: dict[str, int] = {}
    for match in _SPAN.finditer(attributes):
        if not _NUMBER.fullmatch(match[3]):
            raise InvalidAnswer(f"{match[0][:40]!r} is not a number from 1 to 1000")
        spans.setdefault(match[1].lower(), int(match[3]))
    return spans


def parse_markdown_table(text: str) -> ParsedTable:
    """Return the one table whose cells are separated by bars.

    A line of dashes below the first row makes that row a header, as in Markdown. A bar at the start of a line does not
    separate cells, nor then does one at its end; "x |" has an empty second cell. \\| is a bar inside a cell.

    Raises:
        InvalidAnswer: there is no table, or several with other text in between.
    """
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if _BAR.search(line):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    blocks = [block for block in blocks if block]
    if len(blocks) != 1:
        raise InvalidAnswer(f"there are {len(blocks)} tables in the text, not one" if blocks else "there is no table")
    lines = blocks[0]
    if sum(line.count("|") for line in lines) > MAX_CELLS:
        raise InvalidAnswer(f"the table has more than {MAX_CELLS} cells")
    if len(lines) > 1 and _RULE.fullmatch(lines[1]):
        body = (TableSection("tbody", tuple(_bar_row(line) for line in lines[2:])),) if len(lines) > 2 else ()
        return ParsedTable((TableSection("thead", (_bar_row(lines[0], header=True),)), *body))
    return ParsedTable((TableSection("tbody", tuple(_bar_row(line) for line in lines)),))


def _bar_row(line: str, header: bool = False) -> TableRow:
    cells = _BAR.split(line.strip())
    if not cells[0].strip() and len(cells) > 1:
        cells = cells[1:-1] if not cells[-1].strip() and len(cells) > 2 else cells[1:]
    return tuple(TableCell(contents([cell.replace("\\|", "|")]), header) for cell in cells)


def parse_latex_table(text: str) -> ParsedTable:
    """Return the one tabular in a text. All rows are body; commands other than rules and spans stay in the content.

    Raises:
        InvalidAnswer: there is no tabular, several or an unclosed one, or a span is not closed.
    """
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise InvalidAnswer(f"there are {text.count(_BEGIN)} {_BEGIN} and {text.count(_END)} {_END}, not one each")
    inside = text.partition(_BEGIN)[2].partition(_END)[0].lstrip()
    if not inside.startswith("{"):
        raise InvalidAnswer(f"{_BEGIN} is not followed by the {{...}} of its columns")
    inside = inside[_closing_brace(inside, 0) + 1 :]
    lines = [line.strip() for line in _ROW_END.split(_LATEX_RULES.sub(" ", inside))]
    if lines and not lines[-1]:
        lines.pop()  # the text after the last row's end
    if inside.count("&") + len(lines) > MAX_CELLS:
        raise InvalidAnswer(f"the table has more than {MAX_CELLS} cells")
    return ParsedTable(
        (TableSection("tbody", tuple(tuple(map(_latex_cell, _CELL_END.split(line))) for line in lines)),)
    )


def _latex_cell(text: str) -> TableCell:
    spans = {"column": 1, "row": 1}
    for _ in range(2):  # a \multicolumn may contain a \multirow, or the reverse
        match = _SPANNING.match(text)
        if match is None:
            break
        end = _closing_brace(text, match.end() - 1)
        spans[match[1]], text = int(match[2]), text[match.end() : end]
    return TableCell(contents([re.sub(r"\\([%&#_$])", r"\1", text)]), False, spans["column"], spans["row"])


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return at
    raise InvalidAnswer("a { in the LaTeX table is never closed")


class HTMLTag(str):
    """A tag in a cell's content, as opposed to the same characters written as text (&lt;b&gt;)."""


def contents(pieces: Iterable[str]) -> tuple[str, ...]:
    """Return a cell's content from its texts and tags.

    A tag is one piece, a run of white space one space, and white space at the ends is removed. Text is normalised to
    NFC.
    """
    made: list[str] = []
    gap = False
    for piece in pieces:
        for part in [piece] if isinstance(piece, HTMLTag) else unicodedata.normalize("NFC", piece):
            if part.isspace():
                gap = True
                continue
            if gap and made:
                made.append(" ")
            gap = False
            made.append(part)
    return tuple(made)
