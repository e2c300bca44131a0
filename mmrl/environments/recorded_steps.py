"""The steps of a recorded trace on screens, as `metadata["steps"]` of a sample holds them.

    {"prompt": "Search for trains.", "images": ["a/0.png"], "metadata": {"space": "norm_1000", "steps": [
        {"action": "click", "point": [500, 80], "boxes": [[400, 60, 600, 100]], "screen": "a/1.png"},
        {"action": "type", "text": "trains", "screen": "a/2.png"},
        {"action": "finished"}]}}

The sample's last image is the first screen. `point` and `boxes` are in the coordinate space `metadata["space"]`, where
`pixel` counts pixels of the screen's own file. With `metadata["start"]` of 2, episodes begin after the first two steps,
which are read as recorded; with `metadata["end"]` of 3 they end after the third.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mmrl.data.media.sample_media import STEPS
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import SPACES, Space, check_box
from mmrl.rewards.parsing.points import check_point

START, END = "start", "end"
"""The keys in `Sample.metadata` of the numbers of steps that episodes begin after, and that they end after."""
MAX_STEPS = 1_000
"""The largest number of steps of a trace."""


class RecordedStep(BaseModel):
    """An action that was recorded, and the screen after it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: str = Field(min_length=1, max_length=100)
    """The name of the action, such as click, type, scroll or finished."""
    point: tuple[float, float] | None = None
    """The place of the action, x to the right and y down."""
    boxes: tuple[tuple[float, float, float, float], ...] | None = Field(default=None, min_length=1)
    """The places that are as good, each x1, y1, x2, y2."""
    text: str | None = None
    """The text that was typed, the direction of a scroll, or the name of an app."""
    written: str | None = Field(default=None, min_length=1)
    """The action as a policy writes it; unset: JSON of the keys above."""
    screen: str | None = None
    """The picture after the action, a path or a data URI; the last step may leave it out."""

    @property
    def action_text(self) -> str:
        """The recorded action as a policy would write it; without a point, in the middle of the first box."""
        if self.written is not None:
            return self.written
        point = self.point
        if point is None and self.boxes:
            x1, y1, x2, y2 = self.boxes[0]
            point = ((x1 + x2) / 2, (y1 + y2) / 2)
        parts: dict[str, Any] = {"action": self.action}
        if point is not None:
            parts["point"] = [int(each) if float(each).is_integer() else round(each, 4) for each in point]
        if self.text is not None:
            parts["text"] = self.text
        return json.dumps(parts, ensure_ascii=False)


@dataclass(frozen=True)
class RecordedTrace:
    """The steps of a sample."""

    steps: tuple[RecordedStep, ...]
    space: Space
    """The coordinate space of their places."""
    start: int
    """The number of the first ones, which are read as recorded."""
    end: int
    """The number of those after which an episode ends."""


_steps = TypeAdapter(tuple[RecordedStep, ...])


def has_steps(sample: Sample) -> bool:
    """Return whether a sample is a recorded trace."""
    return STEPS in sample.metadata


def each_step(sample: Sample) -> tuple[Sample, ...]:
    """Return a sample for each step of a trace, whose episodes begin after the steps before it and end after it.

    Raises:
        DataError: the sample is no recorded trace.
    """
    trace = steps_of(sample)
    return tuple(
        replace(sample, id=f"{sample.id}-step-{start}", metadata={**sample.metadata, START: start, END: start + 1})
        for start in range(trace.start, trace.end)
    )


def steps_of(sample: Sample) -> RecordedTrace:
    """Return the recorded steps of a sample.

    Raises:
        DataError: the sample has no steps or no image, or a step is malformed. The message names sample and key.
    """
    place = f"sample {sample.id!r}: metadata.{STEPS}"
    value, named = sample.metadata.get(STEPS), sample.metadata.get("space")
    space: Space = named if named in SPACES else "norm_1000"
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_STEPS:
        raise DataError(f"{place}: expected a list of 1 to {MAX_STEPS} recorded steps, got {value!r:.60}")
    if not sample.images:
        raise DataError(f"sample {sample.id!r}: images: the last one is the first screen of a trace, and there is none")
    try:  # strict mode of JSON: a list becomes a tuple, but a text does not become a number
        steps = _steps.validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError, ValueError) as err:
        problems = err.errors() if isinstance(err, ValidationError) else [{"loc": (), "msg": str(err)}]
        where = ".".join([place, *(str(part) for part in problems[0]["loc"])])
        raise DataError(f"{where}: {problems[0]['msg']}") from None
    if named not in SPACES and any(step.point or step.boxes for step in steps):
        raise DataError(f"sample {sample.id!r}: metadata.space is {named!r}; it is one of {', '.join(SPACES)}")
    for number, step in enumerate(steps):
        if step.screen is None and number + 1 < len(steps):
            raise DataError(f"{place}.{number}: has no screen, and only the last step may leave it out")
        try:
            for box in step.boxes or ():
                check_box(box, space)
            if step.point is not None:
                check_point(step.point, space)
        except InvalidAnswer as err:
            raise DataError(f"{place}.{number}: {err}") from None
    start, end = sample.metadata.get(START, 0), sample.metadata.get(END, len(steps))
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(steps)):
        raise DataError(
            f"sample {sample.id!r}: metadata.{START} is {start!r:.40}, and metadata.{END} {end!r:.40}; expected "
            f"numbers of steps from 0 to {len(steps)}, with at least one between them"
        )
    return RecordedTrace(steps, space, start, end)
