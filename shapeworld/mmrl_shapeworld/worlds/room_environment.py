"""`shapeworld_rooms`: the environment of rooms with things to place, an entry point of `mmrl.environments`.

An action places the middles of all blocks, in the order of the prompt: `12, 34, 40, 20, 30, 50`, or JSON such as
[{"point_2d": [12, 34]}, {"point_2d": [40, 20]}, {"point_2d": [30, 50]}]. The observation is the room with the blocks
there. The last layout counts; a text that is no layout leaves the blocks where they are. The rewards of a turn are
`gain`, the change of the score, and `related_gain`, that of the share of blocks that are at their side of the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
from mmrl.rewards.parsing.points import POINT_KEYS, check_point, point_from_json
from mmrl_shapeworld.vqa.canvas import PIXELS, colours_of
from mmrl_shapeworld.worlds.room_layouts import LayoutMeasures, Point, Room, draw_room, measures_of

MAX_CHARACTERS = 2_000
"""The number of characters above which an action is no layout."""
TURNS = 3
_SIZE: Size = (float(PIXELS), float(PIXELS))
_NUMBERS = re.compile(r"-?[0-9]{1,6}(?:\.[0-9]{1,6})?(?:(?: ?[,;] ?| |\n)-?[0-9]{1,6}(?:\.[0-9]{1,6})?)*")


class RoomLayouts:
    """Place blocks around a table, look at the room, and place them again; samples are shapeworld:rooms-train."""

    name = "shapeworld_rooms"
    max_turns: int
    instructions = ""
    deadline_s: float | None = None

    def __init__(self, space: Space = "pixel", max_turns: int = TURNS) -> None:
        """
        Args:
            space: the coordinate space of points: pixel, norm_1 or norm_1000.
            max_turns: layouts of an episode.
        """
        if space not in SPACES:
            raise ConfigError(f"{self.name}: space is {space!r}; it is one of {', '.join(SPACES)}")
        if max_turns < 1:
            raise ConfigError(f"{self.name}: max_turns is {max_turns}; it is 1 or more")
        self.space, self.max_turns = space, max_turns

    def begin(self, sample: Sample, reader: MediaReader) -> RoomEpisode:
        """Begin with the heap, which is the picture of the sample."""
        try:
            room = Room.from_dict(sample.answer if isinstance(sample.answer, Mapping) else {})
        except ValueError as err:
            raise DataError(f"sample {sample.id!r}: answer: {err}") from None
        return RoomEpisode(room, self.space, self.max_turns)


class RoomEpisode:
    """The layouts of one row."""

    def __init__(self, room: Room, space: Space = "pixel", max_turns: int = TURNS) -> None:
        self.room, self._space, self._max_turns = room, space, max_turns
        self.layout: tuple[Point, ...] = room.heap
        self._turns = self._invalid = 0
        self._placed = False
        self._ended: str | None = None

    @property
    def turns(self) -> int:
        """The number of turns that were taken."""
        return self._turns

    @property
    def measures(self) -> LayoutMeasures:
        """Return what is right in the layout now: nothing before the first one."""
        return measures_of(self.room, self.layout) if self._placed else LayoutMeasures(0.0, 0.0, False)

    def step(self, action: str | None) -> Step:
        """Place the blocks. A text that is no layout changes nothing."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        if action is None:
            self._ended = "cut_off"
            return Step(None, {"gain": 0.0, "related_gain": 0.0}, {"valid": 0.0, **self._shares()})
        before = self.measures
        layout = layout_in(action, self._space, len(self.room.blocks))
        self._turns += 1
        self._invalid += layout is None
        if layout is not None:
            self.layout, self._placed = layout, True
        if self._turns == self._max_turns:
            self._ended = "turns"
        observation = Observation(images=(self.picture(),)) if self._ended is None else None
        after = self.measures
        rewards = {"gain": _score(after) - _score(before), "related_gain": after.related - before.related}
        return Step(observation, rewards, {"valid": float(layout is not None), **self._shares()})

    def outcome(self) -> Mapping[str, Any]:
        """Return the measures of the last layout.

        `free` and `related` are shares of the blocks, `score` their mean, and `success` is true where both are 1;
        `collisions` is the share of blocks that are not free. All are those of nothing where no layout was valid.
        """
        measures = self.measures
        return {
            "success": measures.success,
            "score": _score(measures),
            "free": measures.free,
            "related": measures.related,
            "collisions": 1.0 - measures.free,
            "ended": self._ended,
            "turns": self._turns,
            "invalid": self._invalid,
        }

    def picture(self) -> Image.Image:
        """Return the room as it is, in RGB."""
        return Image.fromarray(colours_of(draw_room(self.room, self.layout)))

    def _shares(self) -> dict[str, float]:
        return {"free": self.measures.free, "related": self.measures.related}


def layout_in(action: str, space: Space, count: int) -> tuple[Point, ...] | None:
    """Return the points that an action names, in pixels of the room; None unless there are `count` within it."""
    if len(action) > MAX_CHARACTERS:
        return None
    width, height = extent(space, _SIZE)
    try:
        points = [check_point(point, space, _SIZE) for point in _points(answer_text(action))]
    except InvalidAnswer:
        return None
    if len(points) != count or not all(math.isfinite(value) for point in points for value in point):
        return None
    return tuple((x / width * PIXELS, y / height * PIXELS) for x, y in points)


def outcome_of(room: Room, actions: Sequence[str | None], max_turns: int = TURNS) -> Mapping[str, Any]:
    """Return the outcome of actions from the start; those after the end of the episode are left out."""
    episode = RoomEpisode(room, max_turns=max_turns)
    for action in actions:
        if episode.step(action).observation is None:
            break
    return episode.outcome()


def _score(measures: LayoutMeasures) -> float:
    return (measures.free + measures.related) / 2


def _points(text: str) -> list[Point]:
    if _NUMBERS.fullmatch(text):
        numbers = [float(each) for each in re.findall(r"-?[0-9.]+", text)]
        if len(numbers) % 2:
            raise InvalidAnswer(f"{len(numbers)} numbers are no points")
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    value = decode_json(text)
    if not isinstance(value, list):
        raise InvalidAnswer(f"no list of points: {text[:60]!r}")
    return [point_from_json(_point_of(each)) for each in value]


def _point_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        keys = [key for key in POINT_KEYS if key in value]
        if len(keys) != 1:
            raise InvalidAnswer(f"an object names {len(keys)} points, not one: {value!r:.60}")
        return value[keys[0]]
    return value
