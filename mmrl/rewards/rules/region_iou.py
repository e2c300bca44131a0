"""Rewards that compare one answered region with the true one: IoU, GIoU, DIoU and CIoU of boxes, IoU of masks.

The pairwise functions take boxes as rows x1, y1, x2, y2 of float64 arrays [N, 4] and [M, 4], with x1 < x2 and y1 < y2,
and return [N, M]. Equal boxes have exactly 1, and different boxes less than 1 even as float32.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.uris import describe_reference, media_source
from mmrl.rewards.core.image_input import BROKEN_IMAGE
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import LARGEST_BELOW_ONE, RewardInput, clamp_below_one
from mmrl.rewards.parsing.boxes import SPACES, Space, check_space, parse_box, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.json_text import decode_json
from mmrl.rewards.parsing.lenient_forms import Reading, check_reading, lenient_boxes, resolve_reading
from mmrl.rewards.parsing.masks import MAX_PIXELS, Canvas, Rle, mask_from_json, parse_mask

Boxes = NDArray[np.float64]


def pairwise_iou(a: Boxes, b: Boxes) -> Boxes:
    """Return the intersection over union, in [0, 1]."""
    return _exact(_areas(a, b)[0], a, b)


def pairwise_giou(a: Boxes, b: Boxes) -> Boxes:
    """Return the generalised IoU, in (-1, 1] (arXiv:1902.09630): IoU − (|C| − |union|) / |C|.

    C is the smallest box around both. Unlike IoU it distinguishes near from far boxes that do not overlap.
    """
    iou, union = _areas(a, b)
    around = np.prod(_around(a, b), axis=-1)
    return _exact(iou - (around - union) / around, a, b)


def pairwise_diou(a: Boxes, b: Boxes) -> Boxes:
    """Return the distance IoU, in (-1, 1] (arXiv:1911.08287): IoU − d² / c².

    d is the distance of the centres, c the diagonal of the smallest box around both.
    """
    return _exact(_areas(a, b)[0] - _distance(a, b), a, b)


def pairwise_ciou(a: Boxes, b: Boxes) -> Boxes:
    """Return the complete IoU, in (-1.5, 1] (arXiv:1911.08287): DIoU − αv.

    v = 4/π² (atan(w/h) − atan(w'/h'))² compares the shapes, α = v / (1 − IoU + v).
    """
    iou, _ = _areas(a, b)
    shapes = [np.arctan2(box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]) for box in (a, b)]
    v = 4 / math.pi**2 * (shapes[0][:, None] - shapes[1][None, :]) ** 2
    alpha = np.divide(v, 1 - iou + v, out=np.zeros_like(v), where=v > 0)
    return _exact(iou - _distance(a, b) - alpha * v, a, b)


def _areas(a: Boxes, b: Boxes) -> tuple[Boxes, Boxes]:
    """Return the IoU and the area of the union."""
    overlap = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    both = np.prod(overlap.clip(0), axis=-1)
    union = np.prod(a[:, 2:] - a[:, :2], axis=-1)[:, None] + np.prod(b[:, 2:] - b[:, :2], axis=-1)[None, :] - both
    return both / union, union


def _around(a: Boxes, b: Boxes) -> Boxes:
    """Return [N, M, 2], the width and height of the smallest box around both."""
    around: Boxes = np.maximum(a[:, None, 2:], b[None, :, 2:]) - np.minimum(a[:, None, :2], b[None, :, :2])
    return around


def _distance(a: Boxes, b: Boxes) -> Boxes:
    """Return the squared distance of the centres over the squared diagonal of the smallest box around both."""
    apart = (a[:, None, :2] + a[:, None, 2:] - b[None, :, :2] - b[None, :, 2:]) / 2
    relative: Boxes = (apart**2).sum(-1) / (_around(a, b) ** 2).sum(-1)
    return relative


def _exact(values: Boxes, a: Boxes, b: Boxes) -> Boxes:
    equal = (a[:, None, :] == b[None, :, :]).all(axis=-1)
    return np.where(equal, 1.0, np.minimum(values, LARGEST_BELOW_ONE))


class SpaceReward(Reward):
    """The base class of rewards for an answer that has coordinates."""

    def __init__(self, space: Space | None = None, reading: Reading | None = None) -> None:
        """
        Args:
            space: the coordinate space of answers; None means the reference's.
            reading: "lenient" accepts further forms (`mmrl.rewards.parsing.lenient_forms`); None means the sample's.
        """
        check_space(self.name, space)
        check_reading(self.name, reading)
        self.space, self.reading = space, reading


class _OneBox(SpaceReward):
    """The base class of rewards for an answer that is one box. Malformed boxes are invalid."""

    needs = ("text", "references.answer", "references.space")

    @staticmethod
    @abstractmethod
    def overlap(a: Boxes, b: Boxes) -> Boxes:
        """Return the overlap [N, M] of boxes [N, 4] and [M, 4]."""

    def score_one(self, item: RewardInput) -> float:
        truth = true_boxes(item.references, self.space)
        if len(truth.boxes) != 1:
            raise ScoringFailed(f"references['answer'] has {len(truth.boxes)} boxes, not one", "reference")
        answer = answer_text(item.text or "", resolve_form(item))
        if resolve_reading(item, self.reading) == "lenient":
            answer = lenient_boxes(answer)
        box = parse_box(answer, truth.answer_space, truth.size)
        return float(self.overlap(*truth.in_common_space([box]))[0, 0])


class BoxIoU(_OneBox):
    """Intersection over union of the answered and the true box.

    In [0, 1]; 1 for the true box alone, up to float32. `references`: `answer` [x1, y1, x2, y2], `space` (pixel, norm_1
    or norm_1000), and `size` [width, height] if the answer's space differs and one of them is pixel. An answer
    without a box, or with two, or with swapped corners is invalid.
    """

    name, range = "box_iou", (0.0, 1.0)
    source = "Jaccard index"
    overlap = staticmethod(pairwise_iou)


class BoxGIoU(_OneBox):
    """Generalised IoU: also grades boxes that do not overlap.

    IoU − (|C| − |union|) / |C| with C the smallest box around both, in (-1, 1]. References as for `box_iou`. Swapped
    corners are invalid: the formula would give 1 to some of them, and sorting them would hide the mistake.
    """

    name, range = "box_giou", (-1.0, 1.0)
    source = "GIoU, arXiv:1902.09630"
    overlap = staticmethod(pairwise_giou)


class BoxDIoU(_OneBox):
    """Distance IoU: IoU less the squared distance of the centres, relative to the box around both.

    In (-1, 1]. References as for `box_iou`; distances are in pixels if `size` is known, else in the reference's
    space, in which a picture counts as square.
    """

    name, range = "box_diou", (-1.0, 1.0)
    source = "DIoU, arXiv:1911.08287"
    overlap = staticmethod(pairwise_diou)


class BoxCIoU(_OneBox):
    """Complete IoU: distance IoU less a penalty for another shape.

    In (-1.5, 1]. References and distances as for `box_diou`.
    """

    name, range = "box_ciou", (-1.5, 1.0)
    source = "CIoU, arXiv:1911.08287"
    overlap = staticmethod(pairwise_ciou)


MAX_FILE_PIXELS = 2**26
_MODES = ("1", "L", "P", "RGB", "I", "I;16", "I;16B", "I;16L", "I;16N")


class MaskIoU(SpaceReward):
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
        with Image.open(media_source(path)) as picture:
            return _pixels(picture)
    except (*BROKEN_IMAGE, Image.DecompressionBombWarning) as err:
        raise ScoringFailed(
            f"references['answer'], {describe_reference(path)}: {err or type(err).__name__}", "reference"
        ) from err


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
