"""Images for people to look at: a contact sheet before and after training, and the pictures in prompts."""

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
SHEET_GAP, LINE = 8, 15  # pixels between pictures on the sheet; height of a line of text
INK, PAPER, FAINT = "#1d2129", "#ffffff", "#6b7280"
MOST = 4  # pictures of one prompt, side by side
SIDE = 512  # pixels of the longer side of a prompt's pictures
GAP = 4  # pixels between a prompt's pictures

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def still(media: Any) -> Image.Image | None:
    """Return the picture that represents an answer: an image, the middle frame of a video, None for a text."""
    if isinstance(media, Image.Image):
        return media
    return media[len(media) // 2] if isinstance(media, list | tuple) else None


def before_after_grid(
    before: Sequence[Image.Image], after: Sequence[Image.Image], captions: Sequence[str]
) -> Image.Image:
    """Return a contact sheet: pairs of pictures under `before` and `after`, each with its caption."""
    if not len(before) == len(after) == len(captions) > 0:
        raise EvaluationError(f"got {len(before)} pictures before, {len(after)} after and {len(captions)} captions")
    font = ImageFont.load_default(12)
    pairs = [(_resized(a), _resized(b)) for a, b in zip(before, after, strict=True)]
    side = max(max(image.size) for pair in pairs for image in pair)
    gap, width = SHEET_GAP, 2 * side + SHEET_GAP
    texts = [_wrapped(caption, font, width) for caption in captions]
    height = side + LINE * max(len(lines) for lines in texts) + gap
    columns = max(1, min(len(pairs), round(math.sqrt(len(pairs) * height / width))))
    rows = math.ceil(len(pairs) / columns)
    sheet = Image.new("RGB", (columns * (width + 2 * gap) + 2 * gap, rows * (height + gap) + LINE + 3 * gap), PAPER)
    draw = ImageDraw.Draw(sheet)
    for column in range(columns):
        left = 2 * gap + column * (width + 2 * gap)
        draw.text((left, gap), "before", FAINT, font)
        draw.text((left + side + gap, gap), "after", FAINT, font)
    for number, (pair, lines) in enumerate(zip(pairs, texts, strict=True)):
        row, column = divmod(number, columns)
        left, top = 2 * gap + column * (width + 2 * gap), LINE + 2 * gap + row * (height + gap)
        for place, image in enumerate(pair):
            sheet.paste(image, (left + place * (side + gap), top))
        for place, line in enumerate(lines):
            draw.text((left, top + side + 2 + place * LINE), line, INK, font)
    return sheet


def first_of_each_source(sources: Sequence[str], count: int) -> list[int]:
    """Return the numbers of about `count` prompts: the first of each source, at least one each (none if count is 0).

    >>> first_of_each_source(["a", "a", "a", "b", "b"], 4)
    [0, 1, 3, 4]
    """
    each = max(1, count // len(set(sources))) if count and sources else 0
    seen: Counter[str] = Counter()
    chosen = []
    for number, source in enumerate(sources):
        seen[source] += 1
        if seen[source] <= each:
            chosen.append(number)
    return chosen


def prompt_image(sample: Sample, reader: MediaReader) -> Image.Image | None:
    """Return the pictures of a prompt and the middle frames of its videos, the first few side by side; None without.

    Raises:
        DataError: one of them cannot be read.
    """
    pictures = [reader.image(reference, sample.id) for reference in sample.images[:MOST]]
    for reference in sample.videos[: MOST - len(pictures)]:
        frames = reader.video(reference, sample.id).frames
        pictures.append(Image.fromarray(frames[len(frames) // 2]))
    return side_by_side(pictures) if pictures else None


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return one picture of several in a row, reduced to at most 512 pixels."""
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


def _resized(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    longer = max(image.size)
    if longer < SMALLEST:
        factor = math.ceil(SMALLEST / longer)  # an integer, so that pixels stay square
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    if longer > LARGEST:
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return image


def _wrapped(text: str, font: Font, width: int, most: int = 3) -> list[str]:
    """Return at most `most` lines of words; a longer text ends in an ellipsis."""
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
    return [_truncated(line, font, width) for line in lines]


def _truncated(line: str, font: Font, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    line = line.removesuffix(" ...")
    while line and font.getlength(line + "...") > width:
        line = line[:-1]
    return line + "..."
