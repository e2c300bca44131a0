"""One HTML page that holds everything it shows."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

LARGEST = 512  # pixels of a picture's longer side on the page
TINY = 128  # pictures below this are drawn with square pixels


def page(title: str, body: str) -> str:
    """A whole HTML page that loads nothing from anywhere."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def picture(image: Image.Image, alt: str) -> str:
    """An <img> that holds the picture itself, made smaller where it is large."""
    image = image.convert("RGB")
    tiny = ' class="tiny"' if max(image.size) < TINY else ""
    image.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img{tiny} src="data:image/png;base64,{data}" alt="{escape(alt)}">'


def zoomable(pictures: Sequence[tuple[str, str]]) -> str:
    """Pictures (each a label, which may be empty, and an <img>) side by side; choosing them fills the screen with them.

    A check box that nobody sees remembers it, so there is no script, and keys can do it too.
    """
    inside = "".join(f"<span>{escape(label)}{image}</span>" for label, image in pictures)
    kind = "pair" if len(pictures) > 1 else "pair single"
    return (
        f'<label class="zoom"><input type="checkbox" aria-label="larger"><span class="{kind}">{inside}</span></label>'
    )


def section(title: str, content: str, kind: str) -> str:
    """A heading above a grid of cards or charts; nothing where there is no content."""
    return f'<section><h2>{escape(title)}</h2><div class="{kind}">{content}</div></section>' if content else ""


# Texts that a model or a data set wrote, made fit to be shown.


ELLIPSIS = " … "
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What drives a terminal (escapes), turns the text around it (bidirectional overrides), or is half a letter. Line
breaks and tabs are none of these."""


def legible(text: str) -> str:
    """The text with a mark in the place of each character that is unsafe to show."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def shortened(text: str, most: int) -> str:
    """The legible text; of one longer than `most` characters the beginning and, since answers come last, more of
    the end.

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
    """As `shortened`, with each stretch of white space as one blank.

    >>> one_line("a\\n  b", 10)
    'a b'
    """
    return shortened(" ".join(text.split()), most)


def as_text(answer: Any, most: int) -> str | None:
    """A sample's right answer in short: texts as they are, other things as JSON. None where there is none."""
    if answer is None:
        return None
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
    return shortened(text, most)
