"""The reward for an answered mask: its intersection over union with the true mask."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.boxes import SPACES, Space, check_space
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.json_text import decode_json
from mmrl.rewards.parsing.masks import MAX_PIXELS, Canvas, Rle, mask_from_json, parse_mask

MAX_FILE_PIXELS = 2**26
_MODES = ("1", "L", "P", "RGB", "I", "I;16", "I;16B", "I;16L", "I;16N")
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, KeyError, struct.error, Image.DecompressionBombError)


class MaskIoU(Reward):
    """Intersection over union, in pixels, of the answered and the true mask.

    The answer is COCO's run lengths, compressed or not, or polygons, or filled boxes (see
    `mmrl.rewards.parsing.masks`). `references["answer"]` is the same (also as JSON text), or a picture of the mask, as
    path, PIL image or array [H, W], whose pixels are in the mask if they are not 0. `references["size"]` is the
    picture's [width, height], required if the true mask does not contain it; `references["space"]` is the coordinate
    space of its shapes, and that of answers unless `space` is set. For an empty true mask, only an empty answer ([], or
    run lengths of nothing) is right. Shapes without area, masks of another size and masks past the limits are invalid.
    """

    name, needs, range = "mask_iou", ("text", "references.answer"), (0.0, 1.0)
    source = "Jaccard index, by pycocotools.mask"

    def __init__(self, space: Space | None = None) -> None:
        """Set the coordinate space of answers; None means the reference's."""
        check_space(self.name, space)
        self.space = space

    def score_one(self, item: RewardInput) -> float:
        truth = true_mask(item.references)
        height, width = truth["size"]
        canvas = Canvas(width, height, self.space or _space(item.references))
        return mask_iou(parse_mask(answer_text(item.text or "", resolve_form(item)), canvas), truth)


def mask_iou(answered: Rle, truth: Rle) -> float:
    """Return the IoU of two masks of one size; 1 only for equal masks, empty ones included."""
    from pycocotools import mask as coco

    if not coco.area(answered) and not coco.area(truth):
        return 1.0
    overlap = float(coco.iou([answered], [truth], [0])[0, 0])
    return 1.0 if overlap == 1 else clamp_below_one(overlap)


def true_mask(references: Mapping[str, Any]) -> Rle:
    """Return the true mask of a sample.

    Raises:
        ScoringFailed: the mask is malformed or cannot be read.
    """
    mask = references["answer"]
    try:
        if isinstance(mask, str) and mask.lstrip()[:1] in ("[", "{"):
            mask = decode_json(mask)
        if isinstance(mask, str | Path):
            mask = _pixels_of_file(mask)
        elif isinstance(mask, Image.Image):
            mask = _pixels(mask)
        if isinstance(mask, np.ndarray):
            return _encoded(mask)
        return mask_from_json(mask, _canvas(mask, references))
    except InvalidAnswer as err:
        raise ScoringFailed(f"references['answer']: {err}", "reference") from err


def _canvas(mask: Any, references: Mapping[str, Any]) -> Canvas:
    size: Any = references.get("size")
    if size is None and isinstance(mask, Mapping) and isinstance(mask.get("size"), list | tuple):
        size = mask["size"][::-1]
    fit = isinstance(size, list | tuple) and len(size) == 2
    if not fit or not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size):
        raise ScoringFailed(f"references['size'] is {size!r:.60}; expected whole [width, height]", "reference")
    if size[0] * size[1] > MAX_PIXELS:
        raise ScoringFailed(f"references['size'] is {size}; at most {MAX_PIXELS} pixels are compared", "reference")
    return Canvas(size[0], size[1], _space(references))


def _space(references: Mapping[str, Any]) -> Space | None:
    space = references.get("space")
    if space is not None and space not in SPACES:
        raise ScoringFailed(f"references['space'] is {space!r}; it is one of {', '.join(SPACES)}", "reference")
    return space


def _pixels_of_file(path: str | Path) -> NDArray[Any]:
    try:
        with Image.open(path) as picture:
            return _pixels(picture)
    except (*_BROKEN, Image.DecompressionBombWarning) as err:
        raise ScoringFailed(f"references['answer'], {path}: {err or type(err).__name__}", "reference") from err


def _pixels(picture: Image.Image) -> NDArray[Any]:
    width, height = picture.size
    if width * height > MAX_FILE_PIXELS:
        raise InvalidAnswer(f"the picture has {width} x {height} pixels; at most {MAX_FILE_PIXELS} are decoded")
    if picture.mode not in _MODES:
        raise InvalidAnswer(f"the picture's mode is {picture.mode}; a mask has one of {', '.join(_MODES)}")
    values: NDArray[Any] = np.asarray(picture)
    return values.max(axis=-1) if values.ndim == 3 else values


def _encoded(mask: NDArray[Any]) -> Rle:
    from pycocotools import mask as coco

    if mask.ndim != 2 or not mask.size or mask.dtype.kind not in "biuf":
        raise InvalidAnswer(f"an array of {mask.dtype} {list(mask.shape)} is not a mask; expected numbers [H, W]")
    if mask.dtype.kind == "f" and not np.isfinite(mask).all():
        raise InvalidAnswer("the array has values that are not finite")
    encoded: Rle = coco.encode(np.asfortranarray(mask != 0, dtype=np.uint8))
    return encoded
