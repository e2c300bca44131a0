"""Two things of one colour of which a third hides a part of one: where careless answers differ, it pays to look.

An answer names the box that it looks at, and then the boxes of both things of the wanted colour:
`<box>[{"bbox_2d": [3, 10, 21, 19]}]</box></think>[{"bbox_2d": [3, 10, 21, 19]}, {"bbox_2d": [30, 31, 44, 45]}]`.
"""

from __future__ import annotations

import numpy as np

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.boxes import parse_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl.rewards.rules.region_iou import pairwise_iou
from mmrl_shapeworld.vqa.canvas import NUMBERS, PIXELS, blank, scatter
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box, Question, named
from mmrl_shapeworld.worlds.crowds import bare_boxes
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, SEEN_SHAPES, box_around, loosened, stencil

SIDES = (15, 20)
"""The smallest side of a thing in pixels, and one above the largest."""
VISIBLE = (0.4, 0.65)
"""The least and the greatest share of the hidden thing that can be seen; of all others, all can."""
LOOKS = 0.4
"""The share of careless annotators' looks that go to the hidden thing; the others go to any other thing."""
LISTED, SEEN = 0.9, 0.2
"""The share of hidden things that they list after a look at them, and without one."""


def hidden(rng: np.random.Generator) -> Question:
    """Ask for all things of one colour. Annotators mostly overlook the hidden one, unless they have looked at it."""
    while True:
        target, *rest = (str(SEEN_COLOURS[n]) for n in rng.permutation(len(SEEN_COLOURS)))
        colours = [target, target, rest[0]]
        shapes = [str(SEEN_SHAPES[n]) for n in rng.integers(len(SEEN_SHAPES), size=len(colours))]
        sides = rng.integers(*SIDES, len(colours)).tolist()
        corners = scatter(sides[:-1], rng)
        left, top = (edge + int(rng.integers(-12, 13)) for edge in corners[0])  # over the first
        if not (min(left, top) >= 0 and max(left, top) <= PIXELS - sides[-1]):
            continue
        corners.append((left, top))
        owner, whole = np.full((PIXELS, PIXELS), -1), []
        for number, (shape, side, (left, top)) in enumerate(zip(shapes, sides, corners, strict=True)):
            mask = stencil(shape, side)
            owner[top : top + side, left : left + side][mask] = number
            whole.append(int(mask.sum()))
        shares = [(owner == number).sum() / pixels for number, pixels in enumerate(whole)]
        if VISIBLE[0] <= shares[0] <= VISIBLE[1] and min(shares[1:]) == 1:
            break
    picture = blank()
    for number, colour in enumerate(colours):
        picture[owner == number] = NUMBERS[colour]
    boxes = [box_around(owner == number) for number in range(len(colours))]
    found = sorted(box for box, colour in zip(boxes, colours, strict=True) if colour == target)
    looked = boxes[0] if rng.random() < LOOKS else boxes[int(rng.integers(1, len(boxes)))]
    overlooked = rng.random() >= (LISTED if looked == boxes[0] else SEEN)
    drawn = [loosened(box, rng, 0.3, 0.6) for box in found if box != boxes[0] or not overlooked]
    return Question(
        f"Detect all {target} shapes.",
        [{"box": list(box)} for box in found],
        _answer(boxes[0], found),
        _answer(loosened(looked, rng, 0.3, 0.6), drawn),
        (picture,),
        {**IN_PIXELS, "hidden": found.index(boxes[0])},
        (tuple((named((c, s)), box) for c, s, box in zip(colours, shapes, boxes, strict=True)),),
    )


def _answer(looked: Box, found: list[Box]) -> str:
    return f"<box>{bare_boxes([looked])}</box></think>{bare_boxes(found)}"


class HiddenFound(Reward):
    """1 if one of the answered boxes has an IoU of `threshold` or more with the hidden thing, else 0.

    `references["hidden"]` is its place in `references["answer"]`. A box is not refused for being a guess, which is
    what precision measures.
    """

    name, range = "hidden_found", (0.0, 1.0)
    needs = ("text", "references.answer", "references.space", "references.hidden")
    source = "recall of things that others hide"

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold

    def score_one(self, item: RewardInput) -> float:
        truth = true_boxes(item.references)
        answered = parse_boxes(answer_text(item.text or ""), truth.answer_space, truth.size)
        overlap = pairwise_iou(*truth.in_common_space(answered))[:, int(item.references["hidden"])]
        return float(bool((overlap >= self.threshold).any()))
