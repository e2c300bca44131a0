"""What to look at: a contact sheet of pictures before and after, and a curve for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from mmrl.errors import EvaluationError

if TYPE_CHECKING:
    from mmrl.data.media.reader import MediaReader
    from mmrl.data.sample import Sample

SMALLEST, LARGEST = 128, 256  # pixels of a picture's longer side on the sheet
GAP, LINE = 8, 15  # pixels between things; height of a line of text
INK, PAPER, FAINT = "#1d2129", "#ffffff", "#6b7280"


def still(media: Any) -> Image.Image | None:
    """The picture that stands for what a policy made: an image, the middle frame of a video, None for a text."""
    if isinstance(media, Image.Image):
        return media
    return media[len(media) // 2] if isinstance(media, list | tuple) else None


def before_after_grid(
    before: Sequence[Image.Image], after: Sequence[Image.Image], captions: Sequence[str]
) -> Image.Image:
    """A contact sheet: pairs of pictures under `before` and `after`, each with its caption."""
    if not len(before) == len(after) == len(captions) > 0:
        raise EvaluationError(f"got {len(before)} pictures before, {len(after)} after and {len(captions)} captions")
    font = ImageFont.load_default(12)
    pairs = [(_resized(a), _resized(b)) for a, b in zip(before, after, strict=True)]
    side = max(max(image.size) for pair in pairs for image in pair)
    width = 2 * side + GAP
    texts = [_wrapped(caption, font, width) for caption in captions]
    height = side + LINE * max(len(lines) for lines in texts) + GAP
    columns = max(1, min(len(pairs), round(math.sqrt(len(pairs) * height / width))))
    rows = math.ceil(len(pairs) / columns)
    sheet = Image.new("RGB", (columns * (width + 2 * GAP) + 2 * GAP, rows * (height + GAP) + LINE + 3 * GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for column in range(columns):
        left = 2 * GAP + column * (width + 2 * GAP)
        draw.text((left, GAP), "before", FAINT, font)
        draw.text((left + side + GAP, GAP), "after", FAINT, font)
    for number, (pair, lines) in enumerate(zip(pairs, texts, strict=True)):
        row, column = divmod(number, columns)
        left, top = 2 * GAP + column * (width + 2 * GAP), LINE + 2 * GAP + row * (height + GAP)
        for place, image in enumerate(pair):
            sheet.paste(image, (left + place * (side + GAP), top))
        for place, line in enumerate(lines):
            draw.text((left, top + side + 2 + place * LINE), line, INK, font)
    return sheet


def curve_text(values: Sequence[float], width: int = 60, height: int = 5) -> str:
    """A curve of block characters, `height` lines high, its highest and lowest value on the left.

    Longer series are averaged into `width` columns; values that are not finite leave a blank.
    """
    columns = [_finite_mean(part) for part in _parts(list(values), width)]
    known = [value for value in columns if value is not None]
    if not known:
        return "(no values)"
    low, high = min(known), max(known)
    labels = [f"{high:.3g}"] + [""] * (height - 2) + [f"{low:.3g}"] if height > 1 else [f"{high:.3g}"]
    margin = max(len(label) for label in labels)
    levels = [None if v is None else 1 + round((v - low) / ((high - low) or 1) * (8 * height - 1)) for v in columns]
    lines = []
    for row, label in enumerate(labels):
        floor = 8 * (height - 1 - row)
        cells = "".join(" " if level is None else " ▁▂▃▄▅▆▇█"[max(0, min(8, level - floor))] for level in levels)
        lines.append(f"{label:>{margin}} {'┤' if label else '│'}{cells}".rstrip())
    return "\n".join(lines)


def _parts(values: list[float], most: int) -> list[list[float]]:
    count = min(most, len(values))
    return [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]


def _finite_mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _resized(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    longer = max(image.size)
    if longer < SMALLEST:
        factor = math.ceil(SMALLEST / longer)  # whole, so that pixels stay square
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    if longer > LARGEST:
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return image


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int, most: int = 3) -> list[str]:
    """At most `most` lines of words; what does not fit ends in an ellipsis."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > most:
        lines = lines[:most]
        lines[-1] += " ..."
    return [_cut(line, font, width) for line in lines]


def _cut(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    line = line.removesuffix(" ...")
    while line and font.getlength(line + "...") > width:
        line = line[:-1]
    return line + "..."


# What a policy was shown: the pictures that stand beside its answers in a report.


MOST = 4  # pictures of one prompt that stand side by side
SIDE = 512  # pixels of the longer side of what is kept
GAP = 4  # pixels between two


def first_of_each_source(sources: Sequence[str], count: int) -> list[int]:
    """Which prompts to show: about `count`, the first of each source, at least one of each (none if count is 0).

    >>> first_of_each_source(["a", "a", "a", "b", "b"], 4)
    [0, 1, 3, 4]
    """
    each = max(1, count // len(set(sources))) if count and sources else 0
    met: Counter[str] = Counter()
    chosen = []
    for number, source in enumerate(sources):
        met[source] += 1
        if met[source] <= each:
            chosen.append(number)
    return chosen


def prompt_image(sample: Sample, reader: MediaReader) -> Image.Image | None:
    """The sample's picture, or the middle frame of its video, as the reader gives it; the first few side by side where
    there are several. None where there is none.

    Raises:
        DataError: one of them cannot be read.
    """
    pictures = [reader.image(reference, sample.id) for reference in sample.images[:MOST]]
    for reference in sample.videos[: MOST - len(pictures)]:
        frames = reader.video(reference, sample.id).frames
        pictures.append(Image.fromarray(frames[len(frames) // 2]))
    return side_by_side(pictures) if pictures else None


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """One picture of several in a row, made small enough to be kept."""
    small = [picture.convert("RGB") for picture in pictures]
    for picture in small:
        picture.thumbnail((SIDE, SIDE))
    width = sum(picture.width for picture in small) + GAP * (len(small) - 1)
    row = Image.new("RGB", (width, max(picture.height for picture in small)), "white")
    left = 0
    for picture in small:
        row.paste(picture, (left, 0))
        left += picture.width + GAP
    row.thumbnail((SIDE, SIDE))
    return row
