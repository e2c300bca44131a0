"""Screens of coloured buttons that are clicked in the order that the prompt names, over several turns.

A bar shows the progress: one slot for each click that is wanted, dark once it is done. A right click leads to the next
screen, where all buttons lie elsewhere. On some screens two buttons have the wanted colour, and either is right. On a
wrong button nothing happens, or in tasks with dead ends an empty screen appears, whose one button leads back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmrl_shapeworld.scenes import COLOURS
from mmrl_shapeworld.vqa.canvas import INK, LINE, NUMBERS, PIXELS, Picture, blank
from mmrl_shapeworld.vqa.questions import Box
from mmrl_shapeworld.worlds.screens import BAR, SKINS, Skin

LENGTHS = (2, 3, 4, 5)
"""The numbers of clicks that tasks want."""
SPARE_CLICKS = 2
"""Clicks of an episode beyond those that a task wants."""
BACK = "back"
"""The name of the button of a dead end."""
DOUBLE = 0.3
"""The share of screens with two buttons of the wanted colour."""
_SLOT = 8  # pixels between the left sides of two slots


@dataclass(frozen=True)
class ScreenTask:
    """The buttons to click, and everything that the screens follow from."""

    skin: str
    seed: int
    targets: tuple[str, ...]
    """The colours in their order; neighbours differ."""
    clicks: int
    """The number of clicks of an episode."""
    dead_ends: bool

    @property
    def prompt(self) -> str:
        """The colours in words, such as `the blue, the green.`"""
        return f"{', '.join(f'the {colour}' for colour in self.targets)}."

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {**asdict(self), "targets": list(self.targets)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScreenTask:
        """Return the task of `as_dict`.

        Raises:
            ValueError: the data are not those of a task.
        """
        try:
            task = cls(**{**data, "targets": tuple(data["targets"])})
        except (KeyError, TypeError) as err:
            raise ValueError(f"no task of screens: {err}") from None
        known = task.skin in SKINS and set(task.targets) <= set(COLOURS) and len(task.targets) > 0
        if not known or not isinstance(task.seed, int) or not isinstance(task.clicks, int) or task.clicks < 1:
            raise ValueError(f"no task of screens: {data!r:.200}")
        return task


@dataclass(frozen=True)
class ButtonScreen:
    """A picture and its buttons: the colour of each, or `back`, and its box."""

    picture: Picture
    buttons: tuple[tuple[str, Box], ...]

    def button_at(self, x: float, y: float) -> str | None:
        """Return the name of the button at a place in pixels, its edges included."""
        for name, (x1, y1, x2, y2) in self.buttons:
            if x1 <= x <= x2 and y1 <= y <= y2:
                return name
        return None


def sample_task(skins: tuple[str, ...], rng: np.random.Generator) -> ScreenTask:
    """Sample a task of 2 to 5 clicks; every second one has dead ends."""
    length = LENGTHS[int(rng.integers(len(LENGTHS)))]
    targets: list[str] = []
    while len(targets) < length:
        colour = tuple(COLOURS)[int(rng.integers(len(COLOURS)))]
        if not targets or colour != targets[-1]:
            targets.append(colour)
    return ScreenTask(
        skin=skins[int(rng.integers(len(skins)))],
        seed=int(rng.integers(2**31)),
        targets=tuple(targets),
        clicks=length + SPARE_CLICKS,
        dead_ends=bool(rng.integers(2)),
    )


def draw_buttons(task: ScreenTask, done: int, is_dead_end: bool = False, right: int | None = None) -> ButtonScreen:
    """Draw the screen of a task after `done` right clicks, always the same.

    Args:
        task: whose screen it is.
        done: the right clicks before.
        is_dead_end: whether it is the screen behind a wrong button.
        right: the number of buttons with the wanted colour, 1 to 4; None: two on `DOUBLE` of the screens, else one.
    """
    look = SKINS[task.skin]
    rng = np.random.default_rng((task.seed, done, int(is_dead_end)))
    picture = blank()
    picture[:] = look.background
    bar = PIXELS - BAR if look.bar_below else 0
    picture[bar : bar + BAR] = LINE
    for slot in range(len(task.targets)):
        left = 2 + _SLOT * slot
        picture[bar + 1 : bar + BAR - 1, left : left + BAR - 2] = INK if slot < done else 0
    boxes = _places(look, 0 if look.bar_below else BAR, rng)
    if is_dead_end:
        box = boxes[int(rng.integers(len(boxes)))]
        _paint_button(picture, box, look.button, look.frame)
        _paint_arrow(picture, box)
        return ButtonScreen(picture, ((BACK, box),))
    names = [tuple(COLOURS)[n] for n in rng.permutation(len(COLOURS))]
    wanted = task.targets[min(done, len(task.targets) - 1)]
    doubled = 2 if rng.random() < DOUBLE else 1
    while names.count(wanted) < (doubled if right is None else right):
        others = [n for n, name in enumerate(names) if name != wanted]
        names[others[int(rng.integers(len(others)))]] = wanted
    for name, box in zip(names, boxes, strict=True):
        _paint_button(picture, box, NUMBERS[name], look.frame)
    return ButtonScreen(picture, tuple(zip(names, boxes, strict=True)))


def _places(look: Skin, top: int, rng: np.random.Generator) -> list[Box]:
    """Return the boxes of four buttons that do not touch: tiles of a grid, or rows of a list."""
    boxes: list[Box] = []
    for place in range(len(COLOURS)):
        if look.rows:
            width = int(rng.integers(20, PIXELS - 8))
            x, y = int(rng.integers(2, PIXELS - width - 1)), top + 12 * place + 2
            boxes.append((x, y, x + width, y + 10))
        else:
            width, height = rng.integers(12, 20, 2).tolist()
            x = 27 * (place % 2) + int(rng.integers(1, 27 - width))
            y = top + 25 * (place // 2) + int(rng.integers(1, 25 - height))
            boxes.append((x, y, x + width, y + height))
    return boxes


def _paint_button(picture: Picture, box: Box, colour: int, frame: int) -> None:
    x1, y1, x2, y2 = box
    picture[y1:y2, x1:x2] = frame
    picture[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] = colour


def _paint_arrow(picture: Picture, box: Box) -> None:
    """Draw an arrow that points to the left, seven pixels wide."""
    x, y = (box[0] + box[2]) // 2 - 3, (box[1] + box[3]) // 2
    for column in range(4):
        picture[y - column : y + column + 1, x + column] = INK
    picture[y, x : x + 7] = INK
