"""Screens of five skins on which the next action depends on what is visible: a click, a scroll or a text.

The icon that the instruction names is clicked if the screen shows it; otherwise the screen is scrolled, in the
direction that the scroll bar tells. A text is typed if the field has a caret; otherwise the field is clicked first. Two
of the skins occur in out-of-distribution splits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mmrl_shapeworld.captions import KINDS, Kind
from mmrl_shapeworld.vqa.canvas import INK, LINE, PIXELS, SAND, SKY, Picture, blank
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.heldout_tasks import click
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box, Question, Region, slip
from mmrl_shapeworld.worlds.world_canvas import paint_thing

BAR = 6
"""Height of a screen's bar, in pixels."""
ICON = 10
"""Side of an icon in pixels."""


@dataclass(frozen=True)
class Skin:
    """The look of a screen: its colours, its bar, the form of its buttons, and its own words for actions."""

    background: int
    button: int
    frame: int
    bar_below: bool
    rows: bool  # buttons are rows of a list rather than tiles
    click: str
    type: str


SKINS: Mapping[str, Skin] = {
    "light": Skin(0, LINE, LINE, False, False, "click", "type"),
    "dark": Skin(INK, LINE, LINE, False, False, "left_click", "write"),
    "outline": Skin(0, 0, INK, True, False, "tap", "input_text"),
    "sky": Skin(SKY, 0, 0, True, False, "tap", "input_text"),
    "list": Skin(SAND, 0, INK, False, True, "left_single", "type_text"),
}
SEEN_SKINS = ("light", "dark", "outline")
UNSEEN_SKINS = ("sky", "list")
"""Skins of the out-of-distribution split."""


def screen(rng: np.random.Generator) -> Question:
    """Ask for the next action on a screen of a usual skin; see `draw_screen`."""
    return draw_screen(SEEN_SKINS[rng.integers(len(SEEN_SKINS))], rng)


def unseen_screen(skin: str) -> Callable[[np.random.Generator], Question]:
    """Return the function that asks for the next action on screens of one skin."""
    return lambda rng: draw_screen(skin, rng)


def draw_screen(skin: str, rng: np.random.Generator) -> Question:
    """Ask for an icon (three quarters of the cases, one in four of which is off the screen), or to write two letters.

    Annotators click four pixels too low and right, one in five times on another button, and half of the time where
    they should scroll or type.
    `metadata["native"]` is the right answer in the skin's own words, such as `tap(31, 20)`.
    """
    look = SKINS[skin]
    picture = blank()
    picture[:] = look.background
    bar = PIXELS - BAR if look.bar_below else 0
    picture[bar : bar + BAR] = LINE if look.background != LINE else INK
    top = 0 if look.bar_below else BAR
    return _written(skin, picture, top, rng) if rng.random() < 0.25 else _icons(skin, picture, top, rng)


def _icons(skin: str, picture: Picture, top: int, rng: np.random.Generator) -> Question:
    look, count = SKINS[skin], int(rng.integers(2, 4))
    kinds = [KINDS[n] for n in rng.permutation(len(KINDS))[: count + 1]]
    thumb = "down" if rng.integers(2) else "up"  # where the rest of the screen is
    at = top + 2 if thumb == "down" else top + 32
    picture[top : top + 50, PIXELS - 3 :] = look.background
    picture[at : at + 16, PIXELS - 3 :] = INK if look.background != INK else LINE
    boxes, regions = _buttons(picture, kinds[:count], look, top, rng)
    hidden = rng.random() < 0.25
    wanted = kinds[-1] if hidden else kinds[0]
    hit = boxes[slip(0, range(count), 0.8, rng)]
    x, y = (round(min(max((hit[n] + hit[n + 2]) / 2 + rng.normal(4.0, 3.5), 0), PIXELS)) for n in (0, 1))
    middle = ((boxes[0][0] + boxes[0][2]) // 2, (boxes[0][1] + boxes[0][3]) // 2)
    right = f"scroll('{thumb}')" if hidden else click(*middle)
    native = right if hidden else f"{look.click}({middle[0]}, {middle[1]})"
    return Question(
        f"Open the {wanted[0]} {wanted[1]}.",
        {"action": "scroll", "text": thumb} if hidden else {"action": "click", "box": list(boxes[0])},
        right,
        right if hidden and rng.random() < 0.45 else click(x, y),
        (picture,),
        {**IN_PIXELS, "skin": skin, "native": native},
        (regions,),
    )


def _buttons(
    picture: Picture, kinds: list[Kind], look: Skin, top: int, rng: np.random.Generator
) -> tuple[list[Box], tuple[Region, ...]]:
    """Draw a button for each icon, as a tile of a grid of four or as a row of a list."""
    boxes, regions = [], []
    for (colour, shape), place in zip(kinds, rng.permutation(3 if look.rows else 4).tolist(), strict=False):
        if look.rows:
            box = (2, top + 16 * place + 2, PIXELS - 6, top + 16 * place + 16)
            left, upper = box[0] + int(rng.integers(2, 30)), box[1] + 2
        else:
            width, height = rng.integers(ICON + 4, 22, 2).tolist()
            x, y = 26 * (place % 2) + int(rng.integers(1, 26 - width)), top + 25 * (place // 2)
            y += int(rng.integers(1, 25 - height))
            box = (x, y, x + width, y + height)
            left, upper = x + (width - ICON) // 2, y + (height - ICON) // 2
        picture[box[1] : box[3], box[0] : box[2]] = look.frame
        picture[box[1] + 1 : box[3] - 1, box[0] + 1 : box[2] - 1] = look.button
        regions.append((f"{colour} {shape}", paint_thing(picture, colour, shape, left, upper, ICON)))
        boxes.append(box)
    return boxes, tuple(regions)


def _written(skin: str, picture: Picture, top: int, rng: np.random.Generator) -> Question:
    """Ask to write two letters into one field: to type if it has a caret, else to click it."""
    look, caret = SKINS[skin], bool(rng.integers(2))
    word = "".join(LETTERS[n] for n in rng.integers(len(LETTERS), size=2))
    height, width = int(rng.integers(12, 17)), PIXELS - 8 if look.rows else int(rng.integers(26, 44))
    x, y = int(rng.integers(2, PIXELS - width - 2)), top + int(rng.integers(2, 46 - height))
    picture[y : y + height, x : x + width] = look.frame
    picture[y + 1 : y + height - 1, x + 1 : x + width - 1] = look.button
    ink = INK if look.button != INK else LINE
    if caret:
        picture[y + 3 : y + height - 3, x + 4 : x + 6] = ink
    else:  # a grey word stands where text is to go
        dots = written("LET", 1)
        picture[y + 3 : y + 3 + HEIGHT, x + 4 : x + 4 + 3 * (WIDTH + 1) - 1][dots] = ink
    middle = (x + width // 2, y + height // 2)
    right = f"type('{word}')" if caret else click(*middle)
    native = f"{look.type}('{word}')" if caret else f"{look.click}({middle[0]}, {middle[1]})"
    aimed = click(*(min(max(each + round(rng.normal(4.0, 3.5)), 0), PIXELS) for each in middle))
    return Question(
        f"Write {word}.",
        {"action": "type", "text": word} if caret else {"action": "click", "box": [x, y, x + width, y + height]},
        right,
        right if caret and rng.random() < 0.45 else aimed,
        (picture,),
        {**IN_PIXELS, "skin": skin, "native": native},
        ((),),
    )
