"""Toy web pages as markup: a careless writer, a strict parser, a lenient renderer, and the rewards of WebGen-R1.

A page is `<page>` with blocks in it. A `<p>` holds a letter; a `<card>` is a coloured frame around one; a `<grid>`
holds three cards. The writer forgets to close some tags. A strict parser refuses such a page; the renderer, as
browsers do, draws what it can make of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.rewards import InvalidAnswer, Reward, RewardInput
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS

STYLES = ("plain", "card", "grid")
FORGETS = 0.04
"""The probability that the writer forgets to close a tag other than <p>."""
WIDTH, ROW = 24, 4
"""Pixels of a page's width, and of the height of a block."""
_TOKEN = re.compile(r"<(/?)(page|grid|card|p)>|([A-Z])")
_WITHIN = {"": {"page"}, "page": {"grid", "card", "p"}, "grid": {"card"}, "card": {"p"}, "p": set()}


@dataclass
class Element:
    """An element of a page with its text and its children."""

    tag: str
    text: str = ""
    children: list[Element] = field(default_factory=list)


def write_page(letters: Sequence[str], styles: Sequence[str], rng: np.random.Generator) -> str:
    """Return the markup of a page with a block for each letter, in these styles; some tags stay open."""

    def closed(tag: str) -> str:
        return "" if tag != "p" and rng.random() < FORGETS else f"</{tag}>"

    def card(letter: str) -> str:
        return f"<card><p>{letter}</p>{closed('card')}"

    blocks = {
        "plain": lambda letter: f"<p>{letter}</p>",
        "card": card,
        "grid": lambda letter: f"<grid>{''.join(card(letter) for _ in range(3))}{closed('grid')}",
    }
    return f"<page>{''.join(blocks[style](letter) for letter, style in zip(letters, styles, strict=True))}</page>"


def parse_strictly(markup: str) -> Element:
    """Return the page of well-formed markup.

    Raises:
        InvalidAnswer: an element is not closed, stands where it must not, or there is no page or text beside it.
    """
    root = Element("")
    path = [root]
    end = 0
    for token in _TOKEN.finditer(markup):
        if token.start() != end:
            raise InvalidAnswer(f"unknown markup at character {end}")
        end = token.end()
        closing, tag, letter = token.groups()
        if letter is not None:
            if path[-1].tag != "p":
                raise InvalidAnswer(f"the text {letter!r} stands outside of a <p>")
            path[-1].text += letter
        elif closing:
            if path[-1].tag != tag:
                raise InvalidAnswer(f"</{tag}> closes a <{path[-1].tag or 'page'}>")
            path.pop()
        elif tag not in _WITHIN[path[-1].tag]:
            raise InvalidAnswer(f"a <{tag}> stands in a <{path[-1].tag}>")
        else:
            path[-1].children.append(child := Element(tag))
            path.append(child)
    if end != len(markup) or len(path) > 1 or len(root.children) != 1:
        raise InvalidAnswer("the markup is not one closed page")
    return root.children[0]


def render(markup: str) -> Image.Image:
    """Return the picture of any markup, as a browser would: an open card or grid ends where the next block begins."""
    rows: list[list[str]] = []
    in_grid = in_card = False
    for closing, tag, _ in _TOKEN.findall(markup):
        if tag == "grid":
            in_grid = not closing
            rows += [] if closing else [[]]
        elif tag == "card":
            in_card = not closing
            if not closing and not (in_grid and rows and len(rows[-1]) < 3):
                in_grid = False
                rows.append([])
        elif tag == "p" and not closing:
            if not in_card:
                rows.append([])
            rows[-1].append("card" if in_card else "plain")
    canvas = np.empty((max(1, len(rows)) * ROW, WIDTH, 3), np.uint8)
    canvas[:] = BACKGROUND
    palette = list(COLOURS.values())
    for number, row in enumerate(rows):
        for place, block in enumerate(row[:3]):
            left, width = place * WIDTH // 3, WIDTH // 3 if len(row) > 1 else 2 * WIDTH // 3
            area = canvas[number * ROW : number * ROW + ROW - 1, left : left + width - 1]
            if block == "card":
                area[:] = palette[(number + place) % len(palette)]
            area[1, 1:3] = (60, 60, 60)
    return Image.fromarray(canvas)


def colourfulness(picture: Image.Image) -> float:
    """Return the share of a picture that is covered in colour, in [0, 1]."""
    pixels: NDArray[np.int64] = np.asarray(picture, np.int64)
    return float(((pixels.max(-1) - pixels.min(-1)) > 40).mean())


class PageStructure(Reward):
    """1 for markup that a strict parser accepts; malformed markup is invalid. The guard of WebGen-R1's cascade."""

    name, needs, range = "structure", ("text",), (0.0, 1.0)
    source = "WebGen-R1, arXiv:2604.20398"

    def score_one(self, item: RewardInput) -> float:
        parse_strictly(item.text or "")
        return 1.0


class PageContents(Reward):
    """The share of the letters of `references["letters"]` that a page shows, in [0, 1]: its function."""

    name, needs, range = "contents", ("text", "references.letters"), (0.0, 1.0)
    source = "WebGen-R1, arXiv:2604.20398"

    def score_one(self, item: RewardInput) -> float:
        wanted = item.references["letters"]
        found = {letter for _, _, letter in _TOKEN.findall(item.text or "") if letter}
        return sum(letter in found for letter in wanted) / len(wanted)


class PageLook(Reward):
    """A judge of the rendered page, in [0, 1]: it likes colour, and sees no markup. It counts its calls."""

    name, needs, range = "look", ("text",), (0.0, 1.0)
    source = "WebGen-R1, arXiv:2604.20398"

    def __init__(self) -> None:
        self.calls = 0

    def score_one(self, item: RewardInput) -> float:
        self.calls += 1
        return min(1.0, colourfulness(render(item.text or "")) / 0.55)
