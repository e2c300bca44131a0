"""Reading a table out of Markdown, DePlot's lines with bars, or LaTeX's tabular."""

from __future__ import annotations

import re

from mmrl.rewards.base import InvalidAnswer
from mmrl.rewards.parsing.table_model import MOST_CELLS, Cell, Row, Section, Table, contents

_RULE = re.compile(r"\s{0,9}\|?(?:\s{0,9}:?-{1,99}:?\s{0,9}\|)*\s{0,9}:?-{1,99}:?\s{0,9}\|?\s{0,9}")
_BAR = re.compile(r"(?<!\\)\|")
_BEGIN, _END = "\\begin{tabular}", "\\end{tabular}"
_LATEX_RULES = re.compile(
    r"\\(?:hline|toprule|midrule|bottomrule|(?:cline|cmidrule)(?:\([a-z]{1,4}\))?\{[0-9-]{1,9}\})"
)
_ROW_END = re.compile(r"\\\\(?:\[[^\]]{0,20}\])?")
_CELL_END = re.compile(r"(?<!\\)&")
_SPANNING = re.compile(r"\s{0,99}\\multi(column|row)\s?\{([1-9][0-9]{0,2})\}\s?\{[^{}]{0,40}\}\s?\{")


def read_bars(text: str) -> Table:
    """The one table whose cells are parted by bars.

    A line of dashes below the first row makes that row a header, as in Markdown. A bar that begins a
    line does not count, nor one that ends it too: "x |" has an empty second cell. \\| is a bar inside of a cell.

    Raises:
        InvalidAnswer: none, or several with other text in between.
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
    if sum(line.count("|") for line in lines) > MOST_CELLS:
        raise InvalidAnswer(f"the table has more than {MOST_CELLS} cells")
    if len(lines) > 1 and _RULE.fullmatch(lines[1]):
        body = (Section("tbody", tuple(_bar_row(line) for line in lines[2:])),) if len(lines) > 2 else ()
        return Table((Section("thead", (_bar_row(lines[0], header=True),)), *body))
    return Table((Section("tbody", tuple(_bar_row(line) for line in lines)),))


def _bar_row(line: str, header: bool = False) -> Row:
    cells = _BAR.split(line.strip())
    if not cells[0].strip() and len(cells) > 1:
        cells = cells[1:-1] if not cells[-1].strip() and len(cells) > 2 else cells[1:]
    return tuple(Cell(contents([cell.replace("\\|", "|")]), header) for cell in cells)


def read_latex(text: str) -> Table:
    """The one tabular in a text: all of its rows are body. Commands other than rules and spans stay in the content.

    Raises:
        InvalidAnswer: none, several, one that is not closed, or spans that are not closed.
    """
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise InvalidAnswer(f"there are {text.count(_BEGIN)} {_BEGIN} and {text.count(_END)} {_END}, not one each")
    inside = text.partition(_BEGIN)[2].partition(_END)[0].lstrip()
    if not inside.startswith("{"):
        raise InvalidAnswer(f"{_BEGIN} is not followed by the {{...}} of its columns")
    inside = inside[_closing_brace(inside, 0) + 1 :]
    lines = [line.strip() for line in _ROW_END.split(_LATEX_RULES.sub(" ", inside))]
    if lines and not lines[-1]:
        lines.pop()  # what follows the last row's end
    if inside.count("&") + len(lines) > MOST_CELLS:
        raise InvalidAnswer(f"the table has more than {MOST_CELLS} cells")
    return Table((Section("tbody", tuple(tuple(map(_latex_cell, _CELL_END.split(line))) for line in lines)),))


def _latex_cell(text: str) -> Cell:
    spans = {"column": 1, "row": 1}
    for _ in range(2):  # a \multicolumn may hold a \multirow, or the reverse
        match = _SPANNING.match(text)
        if match is None:
            break
        end = _closing_brace(text, match.end() - 1)
        spans[match[1]], text = int(match[2]), text[match.end() : end]
    return Cell(contents([re.sub(r"\\([%&#_$])", r"\1", text)]), False, spans["column"], spans["row"])


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return at
    raise InvalidAnswer("a { in the LaTeX table is never closed")
