"""Self-contained HTML pages: the frame with its style sheet, the elements that pages share, and text made safe to show.

A page loads nothing from anywhere and runs no script: pictures are data URIs, and its security policy forbids the rest.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

LARGEST = 512  # pixels of a picture's longer side on the page
TINY = 128  # pictures below this are drawn with square pixels
UNKNOWN = "<td>&ndash;</td>"
ELLIPSIS = " … "
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal (escapes), reorder the text around them (bidirectional overrides), or are half a
letter (surrogates). Line breaks and tabs are safe."""


def page(title: str, body: str) -> str:
    """Return a whole HTML page that loads nothing."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def section(title: str, content: str, note: str = "") -> str:
    """Return a section with a heading, a note of plain text if there is one, and content in HTML."""
    soft = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{soft}{content}</section>"


def charts_section(title: str, charts: str) -> str:
    """Return a section with a grid of charts; empty without a chart."""
    return section(title, f'<div class="charts">{charts}</div>') if charts else ""


def card_grid(cards: Iterable[str]) -> str:
    """Return cards in a grid."""
    return f'<div class="cards">{"".join(cards)}</div>'


def folded(title: str, content: str) -> str:
    """Return content in HTML under a heading that opens it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def tag(text: str) -> str:
    """Return a short text in a frame."""
    return f'<span class="tag">{escape(text)}</span>'


def facts_list(facts: Mapping[str, str]) -> str:
    """Return labels and values, for the top of a page."""
    cells = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in facts.items())
    return f'<dl class="facts">{cells}</dl>'


def answer_list(texts: Iterable[tuple[str, str | None]], most: int) -> str:
    """Return labelled answers of at most `most` characters each; those that are None are left out."""
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(shortened(text, most)) or '(nothing)'}</dd></div>"
        for label, text in texts
        if text is not None
    )
    return f'<dl class="answers">{cells}</dl>'


def wide_table(heads: str | Sequence[str], rows: Iterable[str]) -> str:
    """Return a table that scrolls sideways. `heads` are texts or the HTML of all head cells; rows are HTML."""
    cells = heads if isinstance(heads, str) else "".join(f"<th>{escape(head)}</th>" for head in heads)
    return f'<div class="wide"><table><tr>{cells}</tr>{"".join(rows)}</table></div>'


def number_cell(value: float, form: str, verdict: str = "") -> str:
    """Return a table cell with a number, coloured by its verdict if there is one; a dash for NaN."""
    kind = f' class="{verdict}"' if verdict else ""
    return f"<td{kind}>{value:{form}}</td>" if math.isfinite(value) else UNKNOWN


def picture(image: Image.Image, alt: str) -> str:
    """Return an <img> that embeds the picture, reduced if it is large."""
    image = image.convert("RGB")
    tiny = ' class="tiny"' if max(image.size) < TINY else ""
    image.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img{tiny} src="data:image/png;base64,{data}" alt="{escape(alt)}">'


def zoomable(pictures: Sequence[tuple[str, str]]) -> str:
    """Return pictures (label, which may be empty, and <img>) side by side; a click fills the screen with them.

    A hidden check box stores the state, so no script is needed and the keyboard works too.
    """
    inside = "".join(f"<span>{escape(label)}{image}</span>" for label, image in pictures)
    kind = "pair" if len(pictures) > 1 else "pair single"
    return (
        f'<label class="zoom"><input type="checkbox" aria-label="larger"><span class="{kind}">{inside}</span></label>'
    )


def legible(text: str) -> str:
    """Return the text with a replacement character for each character that is unsafe to show."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def shortened(text: str, most: int) -> str:
    """Return the legible text; a longer one keeps its beginning and, because answers come last, more of its end.

    >>> shortened("abcdefghijklmnopqrstuvwxyz", 13)
    'abcd … uvwxyz'
    """
    text = legible(text).strip()
    if len(text) <= most:
        return text
    room = max(2, most - len(ELLIPSIS))
    head = room * 2 // 5
    return text[:head].rstrip() + ELLIPSIS + text[len(text) - (room - head) :].lstrip()


def one_line(text: str, most: int) -> str:
    """Return the shortened text with each stretch of white space as one blank.

    >>> one_line("a\\n  b", 10)
    'a b'
    """
    return shortened(" ".join(text.split()), most)


def as_text(answer: Any, most: int) -> str | None:
    """Return a sample's right answer, shortened: texts unchanged, other values as JSON; None without an answer."""
    if answer is None:
        return None
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
    return shortened(text, most)
