"""GenEval on ShapeWorld: its judge, with the rule checker as the detector and the palette as the classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.images.detector import Detection
from mmrl.rewards.images.geneval import GenEval
from mmrl_shapeworld.checker import read
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, SHAPES

SURE = 1.0
"""The confidence of every detection by the checker."""


class ShapeGenEval(GenEval):
    """GenEval on pictures of shapes: whether they are there, in number, colour and place; 0 or 1, or graded.

    The judge is that of `geneval`, with the same references; classes are circle, square and triangle. What finds them
    is the rule checker, so it needs no model.
    """

    name = "shapeworld_geneval"
    licence = "Apache-2.0"

    def __init__(self, graded: bool = False) -> None:
        """`graded`: the reward is Flow-GRPO's graded form."""
        super().__init__(detector=ShapeDetector(), colours=ShapeColours(), graded=graded)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Look for what the clauses name, and judge."""
        return {name.replace("geneval", self.name): value for name, value in super().score_one(item).items()}


class ShapeDetector:
    """Finds shapes by the rules of the checker."""

    def detect(self, image: Image.Image, classes: Sequence[str]) -> list[Detection]:
        """All shapes of these classes."""
        if unknown := [each for each in classes if each not in SHAPES]:
            raise ScoringFailed(f"ShapeWorld has no {', '.join(unknown)}, only {', '.join(SHAPES)}", "unknown_class")
        width, height = image.size
        found = []
        for thing in read(image).things:
            if thing.shape is not None and thing.shape in classes:
                x, y, half = thing.x * width, thing.y * height, thing.side * height / 2
                found.append(Detection(thing.shape, SURE, (x - half, y - half, x + half, y + half)))
        return found

    def weight_files(self) -> tuple[WeightFile, ...]:
        """None: they are rules."""
        return ()


class ShapeColours:
    """Names the colour that most of a thing has."""

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        """The colour of each of some things."""
        palette = np.array([BACKGROUND, *COLOURS.values()], np.float32)
        pixels = np.asarray(image.convert("RGB"), np.float32)
        names = []
        for thing in found:
            x1, y1, x2, y2 = (round(edge) for edge in thing.box)
            part = pixels[max(y1, 0) : max(y2, y1 + 1), max(x1, 0) : max(x2, x1 + 1)]
            nearest = np.linalg.norm(part[..., None, :] - palette, axis=-1).argmin(-1)
            counts = np.bincount(nearest[nearest > 0], minlength=len(palette))
            names.append(list(COLOURS)[int(counts[1:].argmax())])
        return names

    def weight_files(self) -> tuple[WeightFile, ...]:
        """None: it is the palette."""
        return ()
