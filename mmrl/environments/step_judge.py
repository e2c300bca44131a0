"""`StepJudge`: whether an action on a screen does what a recorded one did."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mmrl.environments.recorded_steps import RecordedStep
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.actions import Action, canonical_action, parse_action
from mmrl.rewards.parsing.boxes import LabelledBox, Size, Space, TrueBoxes, convert_box, extent
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl.rewards.parsing.points import Point, check_point, is_inside, parse_pair
from mmrl.rewards.rules.gui import text_match

_BARE_POINT = re.compile(r"[\s\d.,()\[\]-]+", re.ASCII)
_DIRECTED = ("scroll", "swipe")


@dataclass(frozen=True)
class ScreenSize:
    """The size of a screen in its file, and as an input of the policy."""

    file: Size
    seen: Size


@dataclass(frozen=True)
class StepVerdict:
    """The relation of an action to a recorded one."""

    valid: bool
    """The text is one action."""
    kind: bool = False
    """It is the recorded kind of action."""
    match: bool = False
    """It is the recorded action, or as good as it."""


@dataclass(frozen=True)
class StepJudge:
    """The rules by which an action counts as a recorded one.

    equivalent: the kind of action is the same, `tap` being `click`; its point lies in any of the recorded boxes or,
    where there is none, at most `distance` from the recorded point, in fractions of the screen's width and height
    (0.14 in AITW, arXiv:2307.10088); its text has an F1 of at least `least_f1` over words; its direction is the same.
    exact: the text is that of the recorded action, letter by letter.
    """

    match: Literal["equivalent", "exact"] = "equivalent"
    distance: float = 0.14
    least_f1: float = 1.0

    def judge(
        self, action: str, step: RecordedStep, recorded: Space, answered: Space, size: Callable[[], ScreenSize]
    ) -> StepVerdict:
        """Return the verdict on an action.

        Args:
            action: the text of a turn.
            step: the recorded step.
            recorded: the coordinate space of the step.
            answered: the coordinate space of the action; `pixel` counts pixels of the screen as the policy sees it.
            size: returns the size of the screen, if coordinates have to be compared.
        """
        same = self.match == "exact" and action.strip() == step.action_text.strip()
        try:
            found = read_action(action)
            point, text = found.point, found.text
        except InvalidAnswer:
            return StepVerdict(False, False, same)
        kind = found.kind == canonical_action(step.action)
        if self.match == "exact":
            return StepVerdict(True, kind, same)
        place_matches = step.point is None and step.boxes is None
        if kind and not place_matches and point is not None:
            try:
                place_matches = self._hits(point, step, recorded, answered, size())
            except InvalidAnswer:
                return StepVerdict(False)
        return StepVerdict(True, kind, kind and place_matches and self._says(text, step))

    def _hits(self, point: Point, step: RecordedStep, recorded: Space, answered: Space, size: ScreenSize) -> bool:
        """Return whether a point lies where the recorded action was, or would have done the same."""
        check_point(point, answered, size.seen)
        if step.boxes is not None:
            if answered == recorded and (answered != "pixel" or size.seen == size.file):
                boxes, space = step.boxes, recorded
            else:
                space = "norm_1"
                boxes = tuple(convert_box(box, recorded, space, size.file) for box in step.boxes)
            truth = TrueBoxes(tuple(map(LabelledBox, boxes)), space, answered, size.seen)
            return is_inside(point, truth)
        assert step.point is not None
        (width, height), (true_width, true_height) = extent(answered, size.seen), extent(recorded, size.file)
        x, y = point[0] / width - step.point[0] / true_width, point[1] / height - step.point[1] / true_height
        return math.hypot(x, y) <= self.distance

    def _says(self, text: str | None, step: RecordedStep) -> bool:
        if step.text is None:
            return True
        if text is None:
            return False
        if canonical_action(step.action) in _DIRECTED:
            return text.strip().casefold() == step.text.strip().casefold()
        return text_match(text, step.text) >= self.least_f1


def read_action(text: str) -> Action:
    """Return the one action of a turn; a bare point, `12, 34`, is a click.

    Raises:
        InvalidAnswer: it is no action, or several.
    """
    answer = answer_text(text)
    if _BARE_POINT.fullmatch(answer):
        return Action("click", ([*parse_pair(answer)],))
    return parse_action(answer)
