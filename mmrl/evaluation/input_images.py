"""What a policy was shown: the pictures that stand beside its answers in a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from mmrl.data.media.reader import MediaReader
    from mmrl.data.sample import Sample

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


def shown_picture(sample: Sample, reader: MediaReader) -> Image.Image | None:
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
