"""Parse a mask from an answer or a reference into COCO's run-length encoding.

Accepted are {"size": [height, width], "counts": ...} with runs or with COCO's compressed text; polygons as
[x1, y1, x2, y2, x3, y3, ...] or [[x, y], [x, y], [x, y], ...], one or a list of them; boxes [x1, y1, x2, y2], filled;
and any of these under one key such as "segmentation", "polygon" or "bbox_2d". [] is the empty mask. The union of all
shapes is filled by pycocotools, which gives an integer box exactly its pixels.

Masks are never expanded to pixels, and the cost of a mask is bounded in advance: runs are counted and must add up to
the known size of the picture, and the length of polygon outlines is limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.parsing.boxes import OUTSIDE, Space, check_box, extent
from mmrl.rewards.parsing.json_text import decode_json, number

Rle: TypeAlias = dict[str, Any]
"""A mask in the format of pycocotools: size and compressed counts."""

MAX_PIXELS = 2**30  # largest picture in pixels: areas must fit into COCO's 32 bits
MAX_RUNS = 250_000
MAX_SHAPES = 200
MAX_CORNERS = 20_000
MAX_OUTLINE_LENGTH = 800_000
"""The largest total outline length in pixels: pycocotools samples fifths of a pixel, 0.2 s for this length."""
_MAX_DEPTH = 4
_KEYS = ("segmentation", "mask", "masks", "rle", "polygon", "polygons", "bbox_2d", "bbox", "box")


@dataclass(frozen=True)
class Canvas:
    """The size of the picture that a mask belongs to."""

    width: int
    height: int
    space: Space | None
    """The coordinate space of polygons and boxes; run lengths are always in pixels."""


def parse_mask(text: str, canvas: Canvas) -> Rle:
    """Return the mask in an answer, from the one JSON list or object in it.

    Raises:
        InvalidAnswer: there is no mask or several, or it is malformed, does not fit the picture or exceeds a limit.
        ScoringFailed: the mask has shapes, and the canvas has no coordinate space.
    """
    return mask_from_json(decode_json(text), canvas)


def mask_from_json(value: Any, canvas: Canvas) -> Rle:
    """Return the mask in a JSON value, checked as by `parse_mask`."""
    from pycocotools import mask as coco

    runs, outlines = [], []
    for part in _parts(value):
        if isinstance(part, Mapping):
            runs.append(_runs_of(part, canvas))
        else:
            outlines.append(_outline(part, canvas))
        if len(runs) + len(outlines) > MAX_SHAPES:
            raise InvalidAnswer(f"the mask has more than {MAX_SHAPES} parts")
    if sum(map(len, outlines)) > 2 * MAX_CORNERS or sum(map(len, runs)) > MAX_RUNS:
        raise InvalidAnswer(f"the mask has more than {MAX_CORNERS} corners or {MAX_RUNS} runs")
    if sum(map(_length, outlines)) > MAX_OUTLINE_LENGTH:
        raise InvalidAnswer(f"the outlines of the mask are longer than {MAX_OUTLINE_LENGTH} pixels")
    size = [canvas.height, canvas.width]
    drawn = coco.frPyObjects(outlines, *size) if outlines else []
    if drawn and not all(coco.area(drawn)):
        raise InvalidAnswer("a polygon or box has no area in the picture")
    encoded = [coco.frPyObjects({"size": size, "counts": counts}, *size) for counts in runs]
    if not drawn and not encoded:
        encoded = [coco.frPyObjects({"size": size, "counts": [canvas.width * canvas.height]}, *size)]
    merge_spans: Rle = coco.merge([*drawn, *encoded])
    return merge_spans


def _parts(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any] | list[float]]:
    """Yield the run lengths (mappings) and outlines (x, y, x, y, ...; four numbers are a box) in a value."""
    if depth > _MAX_DEPTH:
        raise InvalidAnswer(f"the mask stands more than {_MAX_DEPTH} lists or objects deep")
    if isinstance(value, Mapping):
        if "counts" in value:
            yield value
            return
        keys = [key for key in _KEYS if key in value]
        if len(keys) != 1:
            raise InvalidAnswer(f"an object names {len(keys)} masks, not one: {value!r:.60}")
        yield from _parts(value[keys[0]], depth + 1)
    elif not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidAnswer(f"{value!r:.60} is not a mask; expected run lengths, polygons or boxes")
    elif value and not any(isinstance(part, Sequence | Mapping) for part in value):
        yield [number(part, "a coordinate") for part in value]
    elif len(value) > 2 and all(_is_pair(part) for part in value):
        yield [number(coordinate, "a coordinate") for corner in value for coordinate in corner]
    else:
        for part in value:
            if isinstance(part, Sequence) and not part:
                raise InvalidAnswer("an empty list stands in the place of a shape")
            yield from _parts(part, depth + 1)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(isinstance(part, int | float) and not isinstance(part, bool) for part in value)
    )


def _outline(coordinates: list[float], canvas: Canvas) -> list[float]:
    """Return a polygon's corners x, y, x, y, ... in pixels."""
    if canvas.space is None:
        raise ScoringFailed("the mask has shapes: set `space` to the space of their coordinates", "missing")
    size = (float(canvas.width), float(canvas.height))
    if len(coordinates) == 4:
        x1, y1, x2, y2 = check_box(coordinates, canvas.space, size)
        coordinates = [x1, y1, x2, y1, x2, y2, x1, y2]
    if len(coordinates) < 6 or len(coordinates) % 2:
        raise InvalidAnswer(f"{len(coordinates)} numbers are neither a box (4) nor a polygon (6, 8, ...)")
    width, height = extent(canvas.space, size)
    pixels = []
    for at, coordinate in enumerate(coordinates):
        share = coordinate / (height if at % 2 else width)
        if not math.isfinite(share) or not -OUTSIDE <= share <= 1 + OUTSIDE:
            raise InvalidAnswer(f"the coordinate {coordinate:g} lies outside the picture, {width:g} by {height:g}")
        # Rounded so that 170/1000 of 640 is 108.8.
        pixels.append(round(coordinate if canvas.space == "pixel" else share * size[at % 2], 6))
    return pixels


def _length(outline: list[float]) -> float:
    """Return the number of steps along an outline when it is filled: per edge, the larger of those in x and in y."""
    xs, ys = np.array(outline[::2]), np.array(outline[1::2])
    return float(np.maximum(abs(xs - np.roll(xs, 1)), abs(ys - np.roll(ys, 1))).sum()) + len(xs)


def _runs_of(rle: Mapping[str, Any], canvas: Canvas) -> list[int]:
    """Return the runs of a mask, checked: pycocotools reads past the end of malformed runs."""
    size, counts = rle.get("size"), rle["counts"]
    if not isinstance(size, Sequence) or list(size) != [canvas.height, canvas.width]:
        raise InvalidAnswer(f"the mask's size is {size!r:.40}; expected [{canvas.height}, {canvas.width}]")
    if isinstance(counts, bytes):
        counts = counts.decode("latin-1")
    if isinstance(counts, str):
        counts = _decompressed(counts)
    if not isinstance(counts, Sequence) or len(counts) > MAX_RUNS:
        raise InvalidAnswer(f"the counts are not a list of at most {MAX_RUNS} runs")
    if not all(isinstance(run, int) and not isinstance(run, bool) and run >= 0 for run in counts):
        raise InvalidAnswer("the counts are not whole numbers from 0 on")
    if sum(counts) != canvas.width * canvas.height:
        raise InvalidAnswer(f"the runs add up to {sum(counts)}, not to the {canvas.width * canvas.height} pixels")
    return _without_empty_runs(counts)


def _without_empty_runs(counts: Sequence[int]) -> list[int]:
    """Return the same mask without runs of 0, except a first one, which means that the mask begins inside."""
    joined = [0]
    inside = False
    for at, run in enumerate(counts):
        if not run:
            continue
        if bool(at % 2) != inside:
            joined.append(0)
            inside = not inside
        joined[-1] += run
    return joined


def _decompressed(text: str) -> list[int]:
    """Return the runs of COCO's compressed counts.

    Characters from "0" to "o" are digits of 5 bits; from the fourth run on, values are differences.
    """
    if len(text) > 7 * MAX_RUNS:
        raise InvalidAnswer(f"the compressed counts have {len(text)} characters; {MAX_RUNS} runs are read at most")
    counts: list[int] = []
    value, shift = 0, 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or shift > 30:
            raise InvalidAnswer(f"{character!r} is not part of compressed counts")
        value |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise InvalidAnswer("the compressed counts are truncated")
    return counts
