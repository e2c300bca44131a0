"""One HTML page that holds everything it shows."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

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
