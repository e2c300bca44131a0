"""GenEval: whether a picture holds the things that were asked for, so many, so coloured and so placed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.core.spec import WeightFile
from mmrl.rewards.images.detector import Box, Detection, Detector, TransformersDetector
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rewards.models.model_files import torch_device

if TYPE_CHECKING:
    from torch import Tensor

RELATIONS = ("left of", "right of", "above", "below")
Found = Mapping[str, Sequence[Detection]]  # the things of each class, the surest first


@dataclass(frozen=True)
class Clause:
    """So many things of a class."""

    thing: str
    count: int
    colour: str | None = None
    relation: str | None = None  # where these things are as seen from ...
    target: int = 0  # ... those of the clause of this number


@dataclass(frozen=True)
class Verdict:
    """How a picture fits its clauses."""

    right: bool  # GenEval
    graded: float  # Flow-GRPO, in [0, 1]


class GenEval(Reward):
    """Whether the things asked for are there, in number, colour and place: 0 or 1, or graded in [0, 1].

    `references` is a line of GenEval's metadata: `include`, a list of {"class", "count"} with perhaps "color" and
    "position" ([relation, number of an earlier clause]); perhaps `exclude`, a list of {"class", "count"} that must not
    be reached; perhaps `tag`, of which "counting" raises the threshold of detection. More things than a clause of
    `include` counts are no fault unless `exclude` says so; colours and places are those of the surest detections.

    `geneval/strict` and `geneval/graded` are given beside the reward itself, which is one of the two. Graded is the
    mean of Flow-GRPO's credits, in which also too many things are a fault, with three mends: a credit is never
    negative, a wrong place does not earn a credit besides losing one, and what `exclude` forbids counts where the
    counts of `include` do not tell it already. The thresholds are made for GenEval's Mask2Former; zero-shot
    detectors are less sure of themselves, and rarely reach 0.9.

    A class that the detector does not know and a clause that cannot be read are failures of the scorer.
    """

    name = "geneval"
    needs = ("image", "references.include")
    range = (0.0, 1.0)
    source = "GenEval, arXiv:2310.11513; graded: Flow-GRPO, arXiv:2505.05470"
    licence = "of the detector and the CLIP that are named"

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
            detector: a model of transformers by hub id or local path, or anything that has the methods of `Detector`.
            colours: a CLIP likewise; None where no clause names a colour.
            graded: the reward is Flow-GRPO's graded form.
            threshold: detections count if they are surer than this.
            counting_threshold: the same for references with the tag "counting".
            max_objects: of one class.
            max_overlap: IoU from which on the less sure of two things of one class is dropped; 1 keeps all.
            position_threshold: how far apart centres must be, as a share of the two things' sides.
            device: of the two models; "auto" is CUDA where there is any.
        """
        shares = {"threshold": threshold, "counting_threshold": counting_threshold, "max_overlap": max_overlap}
        if wrong := [f"{name} is {value}" for name, value in shares.items() if not 0 <= value <= 1]:
            raise RewardError(f"geneval: {', '.join(wrong)}; it must be in [0, 1]")
        if max_objects < 1:
            raise RewardError(f"geneval: max_objects is {max_objects}; at least 1 is due")
        if not (position_threshold >= 0 and math.isfinite(position_threshold)):
            raise RewardError(f"geneval: position_threshold is {position_threshold}; a number from 0 up is due")
        self._detector = TransformersDetector(detector, device) if isinstance(detector, str) else detector
        self._colours = ClipColours(colours, device) if isinstance(colours, str) else colours
        self._graded, self._thresholds = graded, (threshold, counting_threshold)
        self._max_objects, self._max_overlap, self._apart = max_objects, max_overlap, position_threshold

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Those of the detector and of the CLIP."""
        return self._detector.weight_files() + (self._colours.weight_files() if self._colours else ())

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Look for what the clauses name, and judge."""
        include = clauses(item.references["include"], "include")
        exclude = clauses(item.references.get("exclude") or [], "exclude")
        if self._colours is None and any(clause.colour for clause in include):
            raise ScoringFailed("a clause names a colour, and geneval was built with colours=None", "no_colours")
        picture = answer_image(item.image)
        threshold = self._thresholds[item.references.get("tag") == "counting"]
        things = self._detector.detect(picture, sorted({clause.thing for clause in (*include, *exclude)}))
        verdict = judge(
            include,
            exclude,
            top_by_confidence(things, threshold, self._max_objects, self._max_overlap),
            lambda found: self._colours.colours(picture, found) if self._colours else [],
            self._apart,
        )
        strict = float(verdict.right)
        own = verdict.graded if self._graded else strict
        return {"geneval": own, "geneval/strict": strict, "geneval/graded": verdict.graded}


def judge(
    include: Sequence[Clause],
    exclude: Sequence[Clause],
    found: Found,
    colours_of: Callable[[Sequence[Detection]], Sequence[str]],
    apart: float = 0.1,
) -> Verdict:
    """GenEval's `evaluate` (djghosh13/geneval evaluation/evaluate_images.py@16f1681) and Flow-GRPO's
    `evaluate_reward` (yifan123/reward-server reward_server/gen_eval.py@7131478) at once."""
    groups: list[Sequence[Detection]] = []  # GenEval: the things of each clause; none if the clause does not hold
    exact_groups: list[Sequence[Detection]] = []  # Flow-GRPO: the same
    credits: list[float] = []
    for clause in include:
        things = found.get(clause.thing, ())
        chosen = things[: clause.count]
        holds, exact = len(chosen) == clause.count, len(things) == clause.count
        credits.append(_closeness(len(things), clause.count))
        if not exact and (clause.colour or clause.relation):
            credits.append(0.0)
        if holds and clause.colour:
            of_colour = list(colours_of(chosen)).count(clause.colour)
            if exact:
                credits.append(_closeness(of_colour, clause.count))
            holds = of_colour == clause.count
            exact = exact and holds
        if exact and clause.relation:
            exact = _placed(chosen, exact_groups[clause.target], clause.relation, apart)
            credits.append(float(exact))
        if holds and clause.relation:
            holds = _placed(chosen, groups[clause.target], clause.relation, apart)
        groups.append(chosen if holds else ())
        exact_groups.append(chosen if exact else ())
    present = [clause for clause in exclude if len(found.get(clause.thing, ())) >= clause.count]
    counted = {clause.thing for clause in include if len(found.get(clause.thing, ())) != clause.count}
    credits += [0.0 for clause in present if clause.thing not in counted]
    graded = sum(credits) / len(credits)
    return Verdict(all(groups) and not present, graded if graded == 1 else clamp_below_one(graded))


def relations(a: Box, b: Box, apart: float = 0.1) -> set[str]:
    """Where `a` is as seen from `b`: none, one or two of `RELATIONS`.

    The offset of the centres is shortened by `apart` of both sides along each axis; what remains counts along the axes
    where it is more than half as long as the whole offset.
    """
    far: set[str] = set()
    offset = [(a[axis] + a[axis + 2] - b[axis] - b[axis + 2]) / 2 for axis in (0, 1)]
    sides = [abs(a[axis + 2] - a[axis]) + abs(b[axis + 2] - b[axis]) for axis in (0, 1)]
    left = [math.copysign(max(abs(o) - apart * side, 0), o) for o, side in zip(offset, sides, strict=True)]
    length = math.hypot(*offset)
    if all(abs(shift) < 1e-3 for shift in left):  # pixels: GenEval's own
        return far
    for shift, (before, after) in zip(left, (RELATIONS[:2], RELATIONS[2:]), strict=True):
        if shift / length < -0.5:
            far.add(before)
        if shift / length > 0.5:
            far.add(after)
    return far


def top_by_confidence(
    things: Sequence[Detection], threshold: float, most: int, overlap: float
) -> dict[str, list[Detection]]:
    """What is surer than the threshold, by class and the surest first, without what overlaps something surer."""
    found: dict[str, list[Detection]] = {}
    for thing in sorted(things, key=lambda thing: -thing.score):
        if thing.score > threshold:
            found.setdefault(thing.label, []).append(thing)
    for label, group in found.items():
        kept: list[Detection] = []
        for thing in group[:most]:
            if overlap >= 1 or all(_overlap(thing.box, other.box) < overlap for other in kept):
                kept.append(thing)
        found[label] = kept
    return found


def clauses(lines: Any, key: str) -> list[Clause]:
    """The clauses of one key of GenEval's metadata.

    Raises:
        ScoringFailed: they cannot be read; the message says which one and why.
    """
    if not isinstance(lines, Sequence) or isinstance(lines, str) or (key == "include" and not lines):
        raise ScoringFailed(f"references[{key!r}] is {lines!r:.80}; a list of clauses is due", "reference")
    return [_clause(line, f"references[{key!r}][{number}]", number) for number, line in enumerate(lines)]


def _clause(line: Any, place: str, number: int) -> Clause:
    def refuse(what: str, due: str) -> ScoringFailed:
        return ScoringFailed(f"{place}: {what}; {due} is due", "reference")

    if not isinstance(line, Mapping):
        raise refuse(f"{line!r:.80}", '{"class": ..., "count": ...}')
    thing, count, colour, position = (line.get(key) for key in ("class", "count", "color", "position"))
    if not isinstance(thing, str) or not thing.strip():
        raise refuse(f"class is {thing!r:.80}", "a word")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise refuse(f"count is {count!r:.80}", "a number from 1 up")
    if colour is not None and colour not in COLOURS:
        raise refuse(f"color is {colour!r:.80}", f"one of {', '.join(COLOURS)}")
    if position is None:
        return Clause(thing, count, colour)
    if not isinstance(position, Sequence) or len(position) != 2 or position[0] not in RELATIONS:
        raise refuse(f"position is {position!r:.80}", f"[one of {', '.join(RELATIONS)}, number of a clause]")
    if not isinstance(position[1], int) or not 0 <= position[1] < number:
        raise refuse(f"position names the clause {position[1]!r:.80}", "the number of one that stands before")
    return Clause(thing, count, colour, position[0], position[1])


def _placed(things: Sequence[Detection], targets: Sequence[Detection], relation: str, apart: float) -> bool:
    """Whether every thing stands so to every target; false without targets."""
    if not targets:
        return False
    return all(relation in relations(thing.box, target.box, apart) for thing in things for target in targets)


def _closeness(number: int, due: int) -> float:
    return max(0.0, 1 - abs(number - due) / due)


def _overlap(a: Box, b: Box) -> float:
    """IoU of boxes whose last pixels are theirs, as GenEval has it."""
    wide, high = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1) for i in (0, 1))
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    return wide * high / (sum(areas) - wide * high)


# The colour of a thing in a picture: GenEval's second seam.


COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
"""The colours that GenEval asks for."""
TEMPLATES = ("a photo of a {colour} {thing}", "a photo of a {colour}-colored {thing}", "a photo of a {colour} object")
BLANK = (0x99, 0x99, 0x99)
"""What the background becomes where a mask tells it from the thing."""


class ColourClassifier(Protocol):
    """Names colours: `ClipColours`, or one of your own."""

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        """The colour, out of `COLOURS`, of each of some things of one class in an RGB picture."""
        ...

    def weight_files(self) -> tuple[WeightFile, ...]:
        """What it was built from: part of what identifies a score."""
        ...


class ClipColours:
    """GenEval's zero-shot classifier over any CLIP of transformers or open_clip (its own is OpenAI's ViT-L/14).

    A thing is cut out by its box, its background made grey where the detector gives masks, and gets the colour whose
    three sentences it is nearest to.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        """
        Raises:
            RewardError: the model cannot be loaded, or is no CLIP.
        """
        self._clip, self._device = load_encoder("geneval", model), torch_device(device)
        self._clip.network.eval().requires_grad_(False).to(self._device)
        self._known: dict[str, Tensor] = {}

    def weight_files(self) -> tuple[WeightFile, ...]:
        """The files that it was loaded from."""
        return tuple(found.weight_file() for found in self._clip.files)

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        """The colour of each of some things of one class."""
        import torch

        if not found:
            return []
        pixels = self._clip.pixels([crop(image, thing) for thing in found])
        with torch.inference_mode():
            likeness = self._clip.embed_pixels(pixels.to(self._device)) @ self._classifier(found[0].label).T
        return [COLOURS[index] for index in likeness.argmax(1).tolist()]

    def _classifier(self, thing: str) -> Tensor:
        """[10, D]; a unit vector for each colour of such a thing: the mean of its sentences."""
        from torch.nn.functional import normalize

        if thing not in self._known:
            sentences = [template.format(colour=c, thing=thing) for c in COLOURS for template in TEMPLATES]
            vectors = self._clip.embed_texts(sentences)
            self._known[thing] = normalize(vectors.view(len(COLOURS), len(TEMPLATES), -1).mean(1), dim=-1)
        return self._known[thing]


def crop(image: Image.Image, thing: Detection) -> Image.Image:
    """A thing alone, at least one pixel of it; boxes that reach out of the picture are cut."""
    left, top, right, bottom = (round(side) for side in thing.box)
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    right, bottom = min(max(right, left + 1), image.width), min(max(bottom, top + 1), image.height)
    seen = image.crop((left, top, right, bottom))
    if thing.mask is None:
        return seen
    height, width = thing.mask.shape
    across, down = width / image.width, height / image.height
    part = (left * across, top * down, right * across, bottom * down)
    mask = Image.fromarray(thing.mask).resize(seen.size, Image.Resampling.NEAREST, box=part)
    return Image.composite(seen, Image.new("RGB", seen.size, BLANK), mask)
