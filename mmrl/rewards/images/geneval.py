"""GenEval: objects, counts, colours and positions in an image, compared with the clauses of its prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, WeightFile, clamp_below_one
from mmrl.rewards.images.detector import Box, Detection, Detector, TransformersDetector
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rewards.models.model_files import torch_device

if TYPE_CHECKING:
    from torch import Tensor

RELATIONS = ("left of", "right of", "above", "below")
DetectionsByLabel = Mapping[str, Sequence[Detection]]  # by class, the most confident first
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
"""The colours of GenEval's prompts."""
TEMPLATES = ("a photo of a {colour} {thing}", "a photo of a {colour}-colored {thing}", "a photo of a {colour} object")
BACKGROUND = (0x99, 0x99, 0x99)  # colour that replaces the background of an object with a mask


@dataclass(frozen=True)
class Clause:
    """A requirement: `count` objects of a class."""

    label: str
    count: int
    colour: str | None = None
    relation: str | None = None  # position of these objects relative to ...
    target: int = 0  # ... the objects of the clause with this index


@dataclass(frozen=True)
class GenEvalResult:
    """The scores of an image."""

    correct: bool  # GenEval
    graded: float  # Flow-GRPO, in [0, 1]


class GenEval(Reward):
    """Presence of the requested objects in number, colour and position: 0 or 1, or graded in [0, 1].

    `references` is a line of GenEval's metadata: `include`, a list of {"class", "count"} with optional "color" and
    "position" ([relation, index of an earlier clause]); optionally `exclude`, a list of {"class", "count"} that must
    not be reached; optionally `tag`, of which "counting" raises the detection threshold. More objects than a clause of
    `include` counts are no fault unless `exclude` forbids them; colours and positions are those of the most confident
    detections.

    `geneval/strict` and `geneval/graded` are returned beside the reward, which is one of the two. Graded is the mean of
    Flow-GRPO's credits, in which too many objects are a fault too, with three corrections: a credit is never negative,
    a wrong position does not both lose and earn a credit, and an `exclude` clause counts where the counts of `include`
    do not imply it. The thresholds are tuned to GenEval's Mask2Former; zero-shot detectors are less confident, and
    rarely reach 0.9.

    A class unknown to the detector and an invalid clause are failures of the scorer.
    """

    name = "geneval"
    needs = ("image", "references.include")
    range = (0.0, 1.0)
    source = "GenEval, arXiv:2310.11513; graded: Flow-GRPO, arXiv:2505.05470"
    licence = "of the named detector and CLIP"

    def __init__(
        self,
        detector: str | Detector = "facebook/mask2former-swin-small-coco-instance",
        colours: str | ColourClassifier | None = "openai/clip-vit-large-patch14",
        graded: bool = False,
        threshold: float = 0.3,
        counting_threshold: float = 0.9,
        max_objects: int = 16,
        max_overlap: float = 1.0,
        position_threshold: float = 0.1,
        device: str = "auto",
    ) -> None:
        """
        Args:
            detector: a model of transformers by hub id or local path, or an object with the methods of `Detector`.
            colours: a CLIP likewise, or a `ColourClassifier`; None if no clause has a colour.
            graded: True gives Flow-GRPO's graded form.
            threshold: detections count if their confidence is above this.
            counting_threshold: the same for references with the tag "counting".
            max_objects: per class.
            max_overlap: IoU from which the less confident of two objects of a class is dropped; 1 keeps all.
            position_threshold: the least offset of two centres, as a share of the two objects' sides.
            device: of the two models; "auto" is CUDA if available.
        """
        shares = {"threshold": threshold, "counting_threshold": counting_threshold, "max_overlap": max_overlap}
        if wrong := [f"{name} is {value}" for name, value in shares.items() if not 0 <= value <= 1]:
            raise RewardError(f"geneval: {', '.join(wrong)}; it must be in [0, 1]")
        if max_objects < 1:
            raise RewardError(f"geneval: max_objects is {max_objects}; it must be at least 1")
        if not (position_threshold >= 0 and math.isfinite(position_threshold)):
            raise RewardError(f"geneval: position_threshold is {position_threshold}; it must be >= 0")
        self._detector = TransformersDetector(detector, device) if isinstance(detector, str) else detector
        self._colours = ClipColours(colours, device) if isinstance(colours, str) else colours
        self._graded, self._thresholds = graded, (threshold, counting_threshold)
        self._max_objects, self._max_overlap, self._margin = max_objects, max_overlap, position_threshold

    def weight_files(self) -> tuple[WeightFile, ...]:
        return self._detector.weight_files() + (self._colours.weight_files() if self._colours else ())

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        include = parse_clauses(item.references["include"], "include")
        exclude = parse_clauses(item.references.get("exclude") or [], "exclude")
        if self._colours is None and any(clause.colour for clause in include):
            raise ScoringFailed("a clause has a colour, but geneval was built with colours=None", "no_colours")
        image = answer_image(item.image)
        threshold = self._thresholds[item.references.get("tag") == "counting"]
        objects = self._detector.detect(image, sorted({clause.label for clause in (*include, *exclude)}))
        result = evaluate_clauses(
            include,
            exclude,
            top_by_confidence(objects, threshold, self._max_objects, self._max_overlap),
            lambda found: self._colours.colours(image, found) if self._colours else [],
            self._margin,
        )
        strict = float(result.correct)
        score = result.graded if self._graded else strict
        return {"geneval": score, "geneval/strict": strict, "geneval/graded": result.graded}


def evaluate_clauses(
    include: Sequence[Clause],
    exclude: Sequence[Clause],
    found: DetectionsByLabel,
    colours_of: Callable[[Sequence[Detection]], Sequence[str]],
    margin: float = 0.1,
) -> GenEvalResult:
    """Evaluate the clauses as GenEval's `evaluate` (djghosh13/geneval evaluation/evaluate_images.py@16f1681)
    and Flow-GRPO's `evaluate_reward` (yifan123/reward-server reward_server/gen_eval.py@7131478) do."""
    groups: list[Sequence[Detection]] = []  # GenEval: the objects of each clause; empty if it is violated
    exact_groups: list[Sequence[Detection]] = []  # the same for Flow-GRPO
    credits: list[float] = []
    for clause in include:
        objects = found.get(clause.label, ())
        chosen = objects[: clause.count]
        holds, exact = len(chosen) == clause.count, len(objects) == clause.count
        credits.append(_count_credit(len(objects), clause.count))
        if not exact and (clause.colour or clause.relation):
            credits.append(0.0)
        if holds and clause.colour:
            of_colour = list(colours_of(chosen)).count(clause.colour)
            if exact:
                credits.append(_count_credit(of_colour, clause.count))
            holds = of_colour == clause.count
            exact = exact and holds
        if exact and clause.relation:
            exact = _in_relation(chosen, exact_groups[clause.target], clause.relation, margin)
            credits.append(float(exact))
        if holds and clause.relation:
            holds = _in_relation(chosen, groups[clause.target], clause.relation, margin)
        groups.append(chosen if holds else ())
        exact_groups.append(chosen if exact else ())
    present = [clause for clause in exclude if len(found.get(clause.label, ())) >= clause.count]
    counted = {clause.label for clause in include if len(found.get(clause.label, ())) != clause.count}
    credits += [0.0 for clause in present if clause.label not in counted]
    graded = sum(credits) / len(credits)
    return GenEvalResult(all(groups) and not present, graded if graded == 1 else clamp_below_one(graded))


def relations(a: Box, b: Box, margin: float = 0.1) -> set[str]:
    """Return the position of `a` relative to `b`: none, one or two of `RELATIONS`.

    The offset of the centres is shortened along each axis by `margin` times the two sides; the remainder counts along
    the axes where it is more than half as long as the whole offset.
    """
    found: set[str] = set()
    offset = [(a[axis] + a[axis + 2] - b[axis] - b[axis + 2]) / 2 for axis in (0, 1)]
    sides = [abs(a[axis + 2] - a[axis]) + abs(b[axis + 2] - b[axis]) for axis in (0, 1)]
    remainder = [math.copysign(max(abs(o) - margin * side, 0), o) for o, side in zip(offset, sides, strict=True)]
    length = math.hypot(*offset)
    if all(abs(shift) < 1e-3 for shift in remainder):  # pixels: GenEval's own
        return found
    for shift, (before, after) in zip(remainder, (RELATIONS[:2], RELATIONS[2:]), strict=True):
        if shift / length < -0.5:
            found.add(before)
        if shift / length > 0.5:
            found.add(after)
    return found


def top_by_confidence(
    objects: Sequence[Detection], threshold: float, limit: int, max_overlap: float
) -> dict[str, list[Detection]]:
    """Return the objects above the threshold by class, the most confident first, without overlapping ones."""
    found: dict[str, list[Detection]] = {}
    for each in sorted(objects, key=lambda each: -each.score):
        if each.score > threshold:
            found.setdefault(each.label, []).append(each)
    for label, group in found.items():
        kept: list[Detection] = []
        for each in group[:limit]:
            if max_overlap >= 1 or all(_inclusive_iou(each.box, other.box) < max_overlap for other in kept):
                kept.append(each)
        found[label] = kept
    return found


def parse_clauses(lines: Any, key: str) -> list[Clause]:
    """Return the clauses of one key of GenEval's metadata.

    Raises:
        ScoringFailed: a clause is invalid; the message says which one and why.
    """
    if not isinstance(lines, Sequence) or isinstance(lines, str) or (key == "include" and not lines):
        raise ScoringFailed(f"references[{key!r}] is {lines!r:.80}; expected a list of clauses", "reference")
    return [_clause(line, f"references[{key!r}][{number}]", number) for number, line in enumerate(lines)]


def _clause(line: Any, place: str, number: int) -> Clause:
    def invalid(problem: str, expected: str) -> ScoringFailed:
        return ScoringFailed(f"{place}: {problem}; expected {expected}", "reference")

    if not isinstance(line, Mapping):
        raise invalid(f"{line!r:.80}", '{"class": ..., "count": ...}')
    label, count, colour, position = (line.get(key) for key in ("class", "count", "color", "position"))
    if not isinstance(label, str) or not label.strip():
        raise invalid(f"class is {label!r:.80}", "a word")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise invalid(f"count is {count!r:.80}", "a number from 1 up")
    if colour is not None and colour not in COLOURS:
        raise invalid(f"color is {colour!r:.80}", f"one of {', '.join(COLOURS)}")
    if position is None:
        return Clause(label, count, colour)
    if not isinstance(position, Sequence) or len(position) != 2 or position[0] not in RELATIONS:
        raise invalid(f"position is {position!r:.80}", f"[one of {', '.join(RELATIONS)}, index of a clause]")
    if not isinstance(position[1], int) or not 0 <= position[1] < number:
        raise invalid(f"position names the clause {position[1]!r:.80}", "the index of an earlier clause")
    return Clause(label, count, colour, position[0], position[1])


def _in_relation(objects: Sequence[Detection], targets: Sequence[Detection], relation: str, margin: float) -> bool:
    """Return True if every object has the relation to every target; False without targets."""
    if not targets:
        return False
    return all(relation in relations(each.box, target.box, margin) for each in objects for target in targets)


def _count_credit(number: int, expected: int) -> float:
    return max(0.0, 1 - abs(number - expected) / expected)


def _inclusive_iou(a: Box, b: Box) -> float:
    """Return the IoU of boxes whose last pixels are inclusive, as in GenEval."""
    wide, high = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1) for i in (0, 1))
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    return wide * high / (sum(areas) - wide * high)


class ColourClassifier(Protocol):
    """A classifier of colours: `ClipColours`, or a user's class."""

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        """Return the colour, one of `COLOURS`, of each of some objects of one class in an RGB image."""

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Return the weight files, which are part of a score's fingerprint."""


class ClipColours:
    """GenEval's zero-shot classifier over any CLIP of transformers or open_clip (GenEval uses OpenAI's ViT-L/14).

    An object is cropped by its box, its background replaced by gray where the detector gives masks, and gets the colour
    whose three sentences are nearest to it.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        """
        Raises:
            RewardError: the model cannot be loaded, or is not a CLIP.
        """
        self._clip, self._device = load_encoder("geneval", model), torch_device(device)
        self._clip.freeze(device)
        self._class_vectors: dict[str, Tensor] = {}

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._clip.files)

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        import torch

        if not found:
            return []
        pixels = self._clip.pixels([crop(image, each) for each in found])
        with torch.inference_mode():
            cosines = self._clip.embed_pixels(pixels.to(self._device)) @ self._classifier(found[0].label).T
        return [COLOURS[index] for index in cosines.argmax(1).tolist()]

    def _classifier(self, label: str) -> Tensor:
        """Return [10, D] unit vectors, one for each colour of this class: the mean of its sentences."""
        from torch.nn.functional import normalize

        if label not in self._class_vectors:
            sentences = [template.format(colour=c, thing=label) for c in COLOURS for template in TEMPLATES]
            vectors = self._clip.embed_texts(sentences)
            self._class_vectors[label] = normalize(vectors.view(len(COLOURS), len(TEMPLATES), -1).mean(1), dim=-1)
        return self._class_vectors[label]


def crop(image: Image.Image, found: Detection) -> Image.Image:
    """Return the crop of an object, at least one pixel; boxes that exceed the image are clipped."""
    left, top, right, bottom = (round(side) for side in found.box)
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    right, bottom = min(max(right, left + 1), image.width), min(max(bottom, top + 1), image.height)
    cropped = image.crop((left, top, right, bottom))
    if found.mask is None:
        return cropped
    height, width = found.mask.shape
    across, down = width / image.width, height / image.height
    part = (left * across, top * down, right * across, bottom * down)
    mask = Image.fromarray(found.mask).resize(cropped.size, Image.Resampling.NEAREST, box=part)
    return Image.composite(cropped, Image.new("RGB", cropped.size, BACKGROUND), mask)
