"""Object detection: the interface that GenEval uses, and its implementation by any detector of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import WeightFile
from mmrl.rewards.models.model_files import load_component, load_pretrained, torch_device, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["boxes", "masks", "queries", "phrases"]
Box = tuple[float, float, float, float]

MIN_SCORE = 0.05  # detections below this score are never returned; thresholds of rewards are higher

MAX_SIDE = 2048  # width and height above which images are downscaled for the detector

COCO_NAMES = {"computer mouse": "mouse", "tv remote": "remote", "computer keyboard": "keyboard"}
"""{GenEval's name: COCO's name} of the classes whose names differ."""

MAX_MASK_SIDE = 1024
"""Width and height above which masks are coarser than the image. Each of 100 queries has a mask of 32 bits a pixel, and
the detectors compute them at 384 x 384."""


@dataclass(frozen=True)
class Detection:
    """A detected object."""

    label: str  # one of the requested classes, spelled as in the request
    score: float  # in [0, 1]
    box: Box  # x1, y1, x2, y2 in pixels
    mask: NDArray[np.bool_] | None = None  # of the whole image, coarser than a large image


class Detector(Protocol):
    """An object detector: `TransformersDetector`, or a user's class."""

    def detect(self, image: Image.Image, classes: Sequence[str]) -> list[Detection]:
        """Return all objects of these classes in an RGB image, in any order.

        Raises:
            ScoringFailed: a class is unknown to the detector.
        """

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Return the weight files, which are part of a score's fingerprint."""


class TransformersDetector:
    """Any object detector of transformers, by hub id or local path.

    Detectors of fixed classes (DETR, RT-DETR, D-FINE, YOLOS ...), zero-shot ones, which take any words for a class
    (Grounding DINO, OWLv2, OmDet-Turbo ...), and Mask2Former and similar ones, which give masks, as the architecture
    in the model's configuration says. All classes are requested at once, so that they compete for a box, and a box
    counts for its best class only.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        """
        Raises:
            RewardError: the model cannot be loaded, or is not an object detector.
        """
        import transformers

        config = load_component(transformers.AutoConfig, model, None)
        self.kind = _kind(config, model)
        loader, processor = {
            "boxes": (transformers.AutoModelForObjectDetection, transformers.AutoImageProcessor),
            "masks": (transformers.AutoModelForUniversalSegmentation, transformers.AutoImageProcessor),
            "queries": (transformers.AutoModelForZeroShotObjectDetection, transformers.AutoProcessor),
            "phrases": (transformers.AutoModelForZeroShotObjectDetection, transformers.AutoProcessor),
        }[self.kind]
        network, self._files = load_pretrained(loader, model, None, torch_dtype("float32"))
        self._processor = load_component(processor, model, None)
        self._name, self._device = model, torch_device(device)
        self._network = network.eval().requires_grad_(False).to(self._device)
        self._labels = {number: _normalized_label(label) for number, label in (config.id2label or {}).items()}

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._files)

    def detect(self, image: Image.Image, classes: Sequence[str]) -> list[Detection]:
        """Return all objects of these classes with a score above `MIN_SCORE`."""
        import torch

        requested = {_normalized_label(name): name for name in classes}
        if not requested:
            return []
        size = (image.height, image.width)
        if max(size) > MAX_SIDE:  # some detectors pad to a square first: a strip would take gigabytes
            image = image.copy()
            image.thumbnail((MAX_SIDE, MAX_SIDE))
        with torch.inference_mode():
            if self.kind in ("queries", "phrases"):
                return self._detect_phrases(image, size, requested)
            return self._detect_labels(image, size, requested)

    def _detect_phrases(self, image: Image.Image, size: tuple[int, int], requested: dict[str, str]) -> list[Detection]:
        words = list(requested)
        if self.kind == "phrases" and (split := [word for word in words if "." in word or "?" in word]):
            raise ScoringFailed(f"{self._name} reads {', '.join(split)} as several classes", "unknown_class")
        inputs = self._processor(images=image, text=[words], return_tensors="pt").to(self._device)
        outputs = self._network(**inputs)
        if self.kind == "phrases":
            stop = self._processor.tokenizer.convert_tokens_to_ids(".")
            scores, best = best_phrase(outputs.logits[0], inputs["input_ids"][0], stop, len(words))
            boxes = corners(outputs.pred_boxes[0], size)
            found = zip([words[b] for b in best.tolist()], scores.tolist(), boxes.tolist(), strict=True)
        else:
            [rows] = self._processor.post_process_grounded_object_detection(
                outputs=outputs, threshold=MIN_SCORE, target_sizes=[size], text_labels=[words]
            )
            found = zip(rows["text_labels"], rows["scores"].tolist(), rows["boxes"].tolist(), strict=True)
        return [Detection(requested[word], score, tuple(box)) for word, score, box in found if score > MIN_SCORE]

    def _detect_labels(self, image: Image.Image, size: tuple[int, int], requested: dict[str, str]) -> list[Detection]:
        known = set(self._labels.values())
        names = {word if word in known else COCO_NAMES.get(word, word): name for word, name in requested.items()}
        if unknown := sorted(name for label, name in names.items() if label not in known):
            raise ScoringFailed(
                f"the detector {self._name} does not know {', '.join(unknown)}; it knows {', '.join(sorted(known))}",
                "unknown_class",
            )
        class_names = {number: names[label] for number, label in self._labels.items() if label in names}
        outputs = self._network(**self._processor(images=image, return_tensors="pt").to(self._device))
        if self.kind == "boxes":
            [rows] = self._processor.post_process_object_detection(outputs, threshold=MIN_SCORE, target_sizes=[size])
            found = zip(rows["labels"].tolist(), rows["scores"].tolist(), rows["boxes"].tolist(), strict=True)
            return [Detection(class_names[n], score, tuple(box)) for n, score, box in found if n in class_names]
        coarse = _limited_size(size, MAX_MASK_SIDE)
        [rows] = self._processor.post_process_instance_segmentation(
            outputs, threshold=MIN_SCORE, target_sizes=[coarse], return_binary_maps=True
        )
        masks: Any = np.asarray(rows["segmentation"].cpu()) > 0.5 if rows["segments_info"] else []
        across, down = size[1] / coarse[1], size[0] / coarse[0]
        return [
            Detection(class_names[segment["label_id"]], segment["score"], _scaled(box_around(mask), across, down), mask)
            for segment, mask in zip(rows["segments_info"], masks, strict=True)
            if segment["label_id"] in class_names
        ]


def best_phrase(
    logits: Tensor,  # [Q, T] of each box and token, -inf where there is no token
    ids: Tensor,  # [L] with L <= T; the tokens of "a cat . a dog ."
    stop: int,  # the token between two phrases
    phrases: int,
) -> tuple[Tensor, Tensor]:  # [Q], [Q]
    """Return each box's score for its best phrase, and the index of that phrase.

    The score of a phrase is that of its best token, as in Grounding DINO (arXiv:2303.05499). The decoding of
    transformers joins all tokens above a threshold to a text, which may mix two classes.

    Raises:
        ScoringFailed: the tokens have another number of phrases: there are more than the detector can take.
    """
    import torch

    stops = (ids == stop).nonzero().flatten().tolist()
    starts = [1, *(position + 1 for position in stops[:-1])]  # after the text's start token
    if len(stops) != phrases or logits.shape[1] < len(ids):
        raise ScoringFailed(f"the detector reads {len(stops)} classes where {phrases} were requested", "unknown_class")
    scores = torch.stack(
        [logits[:, first:last].amax(1) for first, last in zip(starts, stops, strict=True)], dim=1
    ).sigmoid()
    best, which = scores.max(1)
    return best, which


def corners(
    boxes: Tensor,  # [Q, 4] centre, width and height, relative to the image
    size: tuple[int, int],  # height, width
) -> Tensor:  # [Q, 4]
    """Return boxes as x1, y1, x2, y2 in pixels."""
    import torch

    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    scale = boxes.new_tensor([size[1], size[0]])
    return torch.cat([(centre - half) * scale, (centre + half) * scale], dim=1)


def box_around(mask: NDArray[np.bool_]) -> Box:
    """Return the bounding box of a mask as x1, y1, x2, y2 in pixels, x2 and y2 exclusive; all 0 for an empty mask."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0.0, 0.0, 0.0, 0.0
    return float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1)


def _limited_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _scaled(box: Box, across: float, down: float) -> Box:
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down


def _kind(config: Any, model: str) -> Kind:
    from transformers.models.auto import modeling_auto

    architecture = (config.architectures or [config.model_type])[0]
    if architecture in modeling_auto.MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES.values():
        return "phrases" if "grounding" in config.model_type else "queries"
    if architecture in modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES.values():
        return "boxes"
    if architecture in modeling_auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES.values():
        return "masks"
    raise RewardError(
        f"{model} is a {architecture}, not an object detector: use one with fixed classes (facebook/detr-resnet-50), a "
        "zero-shot one (IDEA-Research/grounding-dino-tiny), or one that gives masks "
        "(facebook/mask2former-swin-small-coco-instance)"
    )


def _normalized_label(label: str) -> str:
    return " ".join(label.lower().split())
