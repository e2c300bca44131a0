"""Data sets of stacks of pages, their expert, and the traces of a careless annotator.

`shapeworld:pages-train`, `-development`, `-validation`, and `-ood`, whose wanted headers have an unseen colour or
shape. The stacks of `shapeworld:pages-tall-train`, `-development` and `-validation` have 46 pages instead of 16.
Samples have no pictures: all that a policy sees follows from its actions, so that the actions alone are a
demonstration: `{"turns": ["blue circle", "2", ...]}`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.glyphs import LETTERS
from mmrl_shapeworld.vqa.questions import box_answer, slip
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.page_environment import MAX_TURNS, PageStackEpisode
from mmrl_shapeworld.worlds.page_stacks import COLOURS, SHAPES, SHARING_TALL, PageStack, sample_stack
from mmrl_shapeworld.worlds.world_canvas import UNSEEN_COLOURS, UNSEEN_SHAPES, loosened
from mmrl_shapeworld.worlds.zoom_splits import OUT, SPREAD, small_box

SIZES = {"train": 1200, "development": 256, "validation": 512, "ood": 512}
"""Stacks of each split. Settings are chosen on `development`; `validation` and `ood` are for results."""
TALL = tuple(f"pages-tall-{part}" for part in ("train", "development", "validation"))
NAMES = (*(f"pages-{part}" for part in SIZES), *TALL)
RIGHT, READ = 0.95, 0.98
"""The probabilities that the annotator takes the wanted page or square, and that the letter is read as it is."""
QUERIES = {"both": 0.45, "colour": 0.15, "shape": 0.15, "mixed": 0.15, "square": 0.1}
"""The probabilities of queries: both words of the header; one of them; the colour of the square with the shape of the
header; the colour of the square and the word `square`."""
AGAIN = {"search": 0.25, "select": 0.2, "crop": 0.4}
"""The probabilities of a second call where one was enough."""
_SEED = 87

Annotator = Callable[[PageStackEpisode], str]


@cache
def stacks(split: str) -> tuple[PageStack, ...]:
    """Return the stacks of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of stacks of pages: choose one of {', '.join(NAMES)}")
    part = split.rpartition("-")[2]
    rng = np.random.default_rng((_SEED, list(SIZES).index(part) + (10 if split in TALL else 0)))

    def draw(number: int) -> PageStack | None:
        if split in TALL:
            return sample_stack(rng, sharing=SHARING_TALL)
        stack = sample_stack(rng, COLOURS, SHAPES) if part == "ood" else sample_stack(rng)
        return stack if part != "ood" or {*stack.header} & {*UNSEEN_COLOURS, *UNSEEN_SHAPES} else None

    return draw_disjoint(part, SIZES[part], draw)


def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have the turns of the careless annotator as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, len(SIZES)))
    return tuple(
        Sample(
            id=f"{split}-{number:04d}",
            prompt=stack.prompt,
            answer=stack.as_dict(),
            source="pages",
            demonstration={"turns": list(trace(stack, careless(rng)))} if split.endswith("-train") else None,
        )
        for number, stack in enumerate(stacks(split))
    )


def expert(episode: PageStackEpisode) -> str:
    """Return the next action of one who needs four: both words, the wanted page, the square, and its letter."""
    stack = episode.stack
    if stack.wanted not in episode.sheet:
        return " ".join(stack.header)
    if episode.opened != stack.wanted:
        return str(episode.sheet.index(stack.wanted) + 1)
    page = stack.page(stack.wanted)
    return page.letters[0] if episode.cut is not None else box_answer(small_box(page, 0))


def tidy(rng: np.random.Generator) -> Annotator:
    """Return an annotator who does as the expert, but draws boxes by hand and reads the letter that is in the cut."""

    def annotate(episode: PageStackEpisode) -> str:
        stack = episode.stack
        if episode.opened != stack.wanted:
            return expert(episode)
        if episode.cut is None:
            return box_answer(loosened(small_box(stack.page(stack.wanted), 0), rng, 0.0, SPREAD))
        return _nearest_letter(episode)

    return annotate


def careless(rng: np.random.Generator) -> Annotator:
    """Return an annotator who often forgets a word of the query, makes mistakes, and does things twice."""

    def annotate(episode: PageStackEpisode) -> str:
        kind = episode.calls[-1].kind if episode.calls else None
        if kind is None:
            return _query(episode.stack, rng)
        if len(episode.calls) >= MAX_TURNS - 1:
            return str(LETTERS[rng.integers(len(LETTERS))]) if episode.cut is None else _reading(episode, rng)
        again = rng.random()
        if kind == "search":
            found = episode.stack.wanted in episode.sheet
            return _query(episode.stack, rng) if again < (AGAIN[kind] if found else 0.5) else _choice(episode, rng)
        if kind == "select":
            return _choice(episode, rng) if again < AGAIN[kind] else _box(episode, rng)
        return _box(episode, rng) if again < AGAIN[kind] else _reading(episode, rng)

    return annotate


def trace(stack: PageStack, annotator: Annotator) -> tuple[str, ...]:
    """Return the actions of an annotator in a whole episode."""
    episode = PageStackEpisode(stack, draws=False)
    actions: list[str] = []
    while True:
        actions.append(annotator(episode))
        if episode.step(actions[-1]).observation is None:
            return tuple(actions)


def _query(stack: PageStack, rng: np.random.Generator) -> str:
    colour, shape = stack.header
    words = {
        "both": (colour, shape),
        "colour": (colour,),
        "shape": (shape,),
        "mixed": (stack.colour, shape),
        "square": (stack.colour, "square"),
    }
    return " ".join(words[str(rng.choice(list(QUERIES), p=list(QUERIES.values())))])


def _choice(episode: PageStackEpisode, rng: np.random.Generator) -> str:
    """Return the place of the wanted page on the sheet, or another one."""
    places = range(len(episode.sheet))
    if episode.stack.wanted not in episode.sheet:
        return str(int(rng.integers(len(places))) + 1)
    return str(slip(episode.sheet.index(episode.stack.wanted), places, RIGHT, rng) + 1)


def _box(episode: PageStackEpisode, rng: np.random.Generator) -> str:
    """Return a box around the wanted square of the open page, or around another one, a little too large."""
    page = episode.stack.page(_opened(episode))
    square = slip(0, range(len(page.letters)), RIGHT, rng)
    return box_answer(loosened(small_box(page, square), rng, OUT, SPREAD))


def _reading(episode: PageStackEpisode, rng: np.random.Generator) -> str:
    return str(slip(_nearest_letter(episode), LETTERS, READ, rng))


def _nearest_letter(episode: PageStackEpisode) -> str:
    """Return the letter nearest to the middle of the cut."""
    page, cut = episode.stack.page(_opened(episode)), episode.cut
    if cut is None:
        raise ValueError("nothing was looked at closer")
    away = [abs(x1 + x2 - cut[0] - cut[2]) + abs(y1 + y2 - cut[1] - cut[3]) for x1, y1, x2, y2 in page.letter_boxes]
    return page.letters[int(np.argmin(away))]


def _opened(episode: PageStackEpisode) -> int:
    if episode.opened is None:
        raise ValueError("no page is open")
    return episode.opened
