"""Pictures in a terminal: two pixels a character, drawn with half blocks and true colour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text


def picture_text(image: Image.Image, width: int = 16) -> Text:
    """The image, `width` characters wide and half as many lines high if it is square."""
    height = max(2, round(image.height / image.width * width / 2) * 2)
    pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BOX))
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", Style(color=_hex(above), bgcolor=_hex(below)))
        text.append("\n")
    text.right_crop(1)
    return text


def before_after(
    before: Sequence[Image.Image],
    after: Sequence[Image.Image],
    captions: Sequence[str],
    columns: int = 6,
) -> RenderableType:
    """Rows of pictures before training, each above its picture after training, under its caption."""
    tables = []
    for start in range(0, len(captions), columns):
        part = slice(start, start + columns)
        table = Table.grid(padding=(0, 2, 1, 0))
        table.add_row(*(Text(caption, style="dim") for caption in captions[part]))
        table.add_row(*(picture_text(image) for image in before[part]))
        table.add_row(*(picture_text(image) for image in after[part]))
        tables.append(table)
    return Group(*tables)


def _hex(pixel: np.ndarray) -> str:
    red, green, blue = (int(channel) for channel in pixel)
    return f"#{red:02x}{green:02x}{blue:02x}"
