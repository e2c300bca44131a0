"""`shapeworld_zoom`: the environment of pages that a policy looks at closer, an entry point of `mmrl.environments`.

The first action is a box, such as `[{"bbox_2d": [10, 4, 30, 25]}]`, in pixels of the picture that the policy sees. The
observation is the middle of the box, a square of half its longer side, cut from the page at its full size and enlarged.
The next action is the answer. A first action that names no box is the answer, too, unless the template requires a box.

The outcome says how many `seconds` an episode takes, of which a look may take many. They are stated, and no step waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from PIL import Image

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import CallRejected, Observation, Step, ToolContext
from mmrl.environments.tools.picture_regions import box_in_picture
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import SPACES, Space, parse_box
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import Box

MAX_CHARACTERS = 2_000
"""The number of characters above which an action names no box."""
LOCATED = "located"
"""The reward of a look that hits the wanted letter."""
SMALLEST_CUT = 28
"""The side of the smallest square that is cut out, in pixels of the page."""
LEGIBLE_CUT = PIXELS
"""The side of the largest cut whose letters are as large as their dots, at the size of an observation."""
Template = Literal["none", "offer", "require"]
INSTRUCTIONS: Mapping[Template, str] = {
    "none": "",
    "offer": "Locate the square or read the text.",
    "require": "Locate the square.",
}


class ZoomPages:
    """Name a box to look at closer, then read a letter; samples are shapeworld:zoom-train, at 56 x 56 pixels."""

    name = "shapeworld_zoom"
    max_turns = 2
    deadline_s: float | None = None

    def __init__(
        self,
        space: Space = "pixel",
        template: Template = "none",
        look_seconds: float = 1.0,
        answer_seconds: float = 1.0,
        answer_credit: float = 0.0,
    ) -> None:
        """
        Args:
            space: the coordinate space of boxes: pixel (of the policy's input), norm_1 or norm_1000.
            template: the words before the question: none; offer, which asks for a box or the answer; or require, which
                asks for a box, and a first action without one then ends the episode without an answer (MGPO).
            look_seconds: what a look takes, in the `seconds` of an outcome; above 0.
            answer_seconds: what an answer takes, above 0.
            answer_credit: the partial credit of a wrong answer, from 0 to 1; a right one has 1, and no answer has 0.
        """
        if min(look_seconds, answer_seconds) <= 0 or not 0 <= answer_credit <= 1:
            raise ConfigError(
                f"{self.name}: look_seconds is {look_seconds} and answer_seconds {answer_seconds}, which are above 0; "
                f"answer_credit is {answer_credit}, which is from 0 to 1"
            )
        if space not in SPACES:
            raise ConfigError(f"{self.name}: space is {space!r}; it is one of {', '.join(SPACES)}")
        if template not in get_args(Template):
            raise ConfigError(f"{self.name}: template is {template!r}; it is one of {', '.join(get_args(Template))}")
        self.space, self.template = space, template
        self._costs = look_seconds, answer_seconds, answer_credit
        self.instructions = INSTRUCTIONS[template]

    def begin(self, sample: Sample, reader: MediaReader) -> ZoomEpisode:
        """Begin; the page is read when the first box is named."""
        letters = sample.metadata.get("letters")
        if len(sample.images) != 1 or not isinstance(sample.answer, str) or not isinstance(letters, list):
            raise DataError(f"sample {sample.id!r}: no page to look at closer: take those of shapeworld:zoom-train")
        context = ToolContext(sample, reader)
        return ZoomEpisode(context, self.space, self.template == "require", *self._costs)


class ZoomEpisode:
    """The look and the answer of one row."""

    def __init__(
        self,
        context: ToolContext,
        space: Space,
        box_required: bool = False,
        look_seconds: float = 1.0,
        answer_seconds: float = 1.0,
        answer_credit: float = 0.0,
    ) -> None:
        self._context, self._space, self._box_required = context, space, box_required
        self._look_seconds, self._answer_seconds, self._answer_credit = look_seconds, answer_seconds, answer_credit
        self._cut: Box | None = None
        self._answer: str | None = None
        self._ended: str | None = None

    def step(self, action: str | None) -> Step:
        """Look at a box, or answer."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        box = None if self._cut is not None or action is None else self._box_in(action)
        if box is not None:
            self._cut = middle_of(box, self._context.image(0).size)
            part = self._context.image(0).crop(self._cut).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
            hit = float(self._is_hit())
            return Step(Observation(images=(part,)), {LOCATED: hit}, {"looked": 1.0, "hit": hit})
        if action is None:
            self._ended = "cut_off"
        elif self._box_required and self._cut is None:
            self._ended = "no_box"
        else:
            self._ended, self._answer = "answer", _final(action)
        return Step(None)

    def outcome(self) -> Mapping[str, Any]:
        """Return the answer and whether it is correct, whether the policy looked, and whether at the wanted letter.

        A look is a call of `crop`; `missed` is true of one that is no hit. `credit` is 1 for a right answer, and less
        for another; `seconds` is what the episode takes.
        """
        looked, hit = self._cut is not None, self._is_hit()
        right = self._answer == self._context.sample.answer
        return {
            "answer": self._answer,
            "success": right,
            "looked": looked,
            "hit": hit,
            "calls": {"crop": int(looked)},
            "missed": looked and not hit,
            "ended": self._ended,
            "credit": 1.0 if right else self._answer_credit if self._ended == "answer" else 0.0,
            "seconds": self._answer_seconds + (self._look_seconds if looked else 0.0),
        }

    def _box_in(self, action: str) -> Box | None:
        if len(action) > MAX_CHARACTERS:
            return None
        size = self._context.input_size(0)
        try:
            box = parse_box(answer_text(action), self._space, (float(size[0]), float(size[1])))
            return box_in_picture(self._context, 0, box, self._space)
        except (InvalidAnswer, CallRejected):
            return None

    def _is_hit(self) -> bool:
        """Return whether the cut contains the wanted letter alone, large enough to be read."""
        if self._cut is None:
            return False
        whole = [_contains(self._cut, box) for box in self._context.sample.metadata["letters"]]
        return whole[0] and sum(whole) == 1 and self._cut[2] - self._cut[0] <= LEGIBLE_CUT


def middle_of(box: Box, size: tuple[int, int]) -> Box:
    """Return the square in the middle of a box with half its longer side, moved and shrunk to lie in a picture."""
    x1, y1, x2, y2 = box
    side = min(max((x2 - x1) // 2, (y2 - y1) // 2, SMALLEST_CUT), *size)
    left = min(max((x1 + x2 - side) // 2, 0), size[0] - side)
    top = min(max((y1 + y2 - side) // 2, 0), size[1] - side)
    return left, top, left + side, top + side


def _contains(outer: Box, inner: Box) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and outer[2] >= inner[2] and outer[3] >= inner[3]


def _final(action: str) -> str | None:
    try:
        return answer_text(action)
    except InvalidAnswer:
        return None
