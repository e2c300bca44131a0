"""`shapeworld_screens`: the environment of the screens of coloured buttons, an entry point of `mmrl.environments`.

An action is a click: `12, 34`, `click(12, 34)`, or JSON such as {"action": "click", "point": [12, 34]}. The observation
is the next screen. The reward of a turn, `progress`, is 1 for a click on a wanted colour, else 0: the way back from a
dead end has none, or it would pay to enter one. `level`, the share of clicks done so far, is given on request: where an
episode may go on for long it pays to stop just before the end, unless it is taken as a potential.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import SPACES, Size, Space, extent
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl.rewards.parsing.json_text import decode_json
from mmrl.rewards.parsing.points import Point, check_point, parse_point, point_from_json
from mmrl_shapeworld.vqa.canvas import PIXELS, colours_of
from mmrl_shapeworld.worlds.button_screens import (
    BACK,
    LENGTHS,
    SPARE_CLICKS,
    ButtonScreen,
    ScreenTask,
    draw_buttons,
)

ANNOTATORS = ("expert", "careless")
"""The scripted annotators, whose traces `ButtonScreens.record` returns."""
MAX_CHARACTERS = 2_000
"""The number of characters above which an action is no click."""
_SIZE: Size = (float(PIXELS), float(PIXELS))


class ButtonScreens:
    """Click coloured buttons in the order of the prompt, over several screens; samples are shapeworld:screens-train."""

    name = "shapeworld_screens"
    max_turns = max(LENGTHS) + SPARE_CLICKS
    instructions = ""
    deadline_s: float | None = None
    annotators = ANNOTATORS

    def __init__(self, space: Space = "pixel", spare_clicks: int | None = None, level: bool = False) -> None:
        """
        Args:
            space: the coordinate space of clicks: pixel, norm_1 or norm_1000.
            spare_clicks: clicks of an episode beyond those that a task wants; None: as the task says, two.
            level: True gives a second reward of each turn, the share of wanted clicks that are done so far.
        """
        if space not in SPACES:
            raise ConfigError(f"{self.name}: space is {space!r}; it is one of {', '.join(SPACES)}")
        if spare_clicks is not None and spare_clicks < 0:
            raise ConfigError(f"{self.name}: spare_clicks is {spare_clicks}; it is a number from 0")
        self.space, self.spare_clicks, self.level = space, spare_clicks, level
        if spare_clicks is not None:
            self.max_turns = max(LENGTHS) + spare_clicks

    def begin(self, sample: Sample, reader: MediaReader) -> ButtonEpisode:
        """Begin at the first screen, which is the picture of the sample."""
        try:
            task = ScreenTask.from_dict(sample.answer if isinstance(sample.answer, Mapping) else {})
        except ValueError as err:
            raise DataError(f"sample {sample.id!r}: answer: {err}") from None
        if self.spare_clicks is not None:
            task = replace(task, clicks=len(task.targets) + self.spare_clicks)
        return ButtonEpisode(task, self.space, self.level)

    def record(self, sample: Sample, annotator: str, seed: int) -> Sample:
        """Return the trace of a scripted annotator as a sample of the environment `recorded`, in pixels.

        Raises:
            ConfigError: there is no such annotator.
            DataError: the sample has no task of screens.
        """
        from mmrl_shapeworld.worlds.button_traces import record  # which plays episodes of this environment

        return record(sample, annotator, seed)


class ButtonEpisode:
    """The clicks of one row."""

    def __init__(self, task: ScreenTask, space: Space = "pixel", level: bool = False) -> None:
        self.task, self._space, self._level = task, space, level
        self.done = self._clicks = self._hits = self._invalid = self._dead_ends = 0
        self._ended: str | None = None
        self.screen: ButtonScreen = draw_buttons(task, 0)

    @property
    def wanted(self) -> str:
        """The name of the button that is right now: a colour, or `back` in a dead end."""
        return BACK if self.screen.buttons[0][0] == BACK else self.task.targets[self.done]

    def step(self, action: str | None) -> Step:
        """Click. A text that names no point inside the picture is a click on nothing."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        if action is None:
            self._ended = "cut_off"
            return Step(None, self._rewards(0.0), {"hit": 0.0, "valid": 0.0})
        self._clicks += 1
        point = self._point(action)
        self._invalid += point is None
        button = None if point is None else self.screen.button_at(*point)
        hit = button == self.wanted
        self._hits += hit
        if hit:
            self.done += button != BACK
            self._show(is_dead_end=False)
        elif button is not None and self.task.dead_ends:
            self._dead_ends += 1
            self._show(is_dead_end=True)
        if self.done == len(self.task.targets):
            self._ended = "success"
        elif self._clicks == self.task.clicks:
            self._ended = "clicks"
        observation = Observation(images=(self.picture(),)) if self._ended is None else None
        progress = float(hit and button != BACK)
        return Step(observation, self._rewards(progress), {"hit": float(hit), "valid": float(point is not None)})

    def outcome(self) -> Mapping[str, Any]:
        """Return success, the share of targets done, and the clicks: all, right, invalid and into dead ends."""
        return {
            "success": self.done == len(self.task.targets),
            "progress": self.done / len(self.task.targets),
            "ended": self._ended,
            "clicks": self._clicks,
            "hits": self._hits,
            "invalid": self._invalid,
            "dead_ends": self._dead_ends,
        }

    def picture(self) -> Image.Image:
        """Return the current screen in RGB."""
        return Image.fromarray(colours_of(self.screen.picture))

    def _rewards(self, progress: float) -> dict[str, float]:
        level = {"level": self.done / len(self.task.targets)} if self._level else {}
        return {"progress": progress, **level}

    def _show(self, is_dead_end: bool) -> None:
        if self.done < len(self.task.targets):
            self.screen = draw_buttons(self.task, self.done, is_dead_end)

    def _point(self, action: str) -> Point | None:
        """Return the place of a click in pixels; None for a text that is no click."""
        if len(action) > MAX_CHARACTERS:
            return None
        try:
            x, y = _parsed(answer_text(action), self._space)
        except InvalidAnswer:
            return None
        width, height = extent(self._space, _SIZE)
        return x / width * PIXELS, y / height * PIXELS


def outcome_of(task: ScreenTask, actions: Sequence[str | None]) -> Mapping[str, Any]:
    """Return the outcome of actions from the start; those after the end of the episode are left out."""
    episode = ButtonEpisode(task)
    for action in actions:
        if episode.step(action).observation is None:
            break
    return episode.outcome()


def _parsed(text: str, space: Space) -> Point:
    if '"action"' not in text:
        return parse_point(text, space, _SIZE)
    value = decode_json(text)
    if not isinstance(value, dict) or value.get("action") != "click" or value.keys() - {"action", "point"}:
        raise InvalidAnswer(f"no click: {text[:60]!r}")
    return check_point(point_from_json(value.get("point")), space, _SIZE)
