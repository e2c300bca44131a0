"""`shapeworld_pages`: the environment of a stack of pages to search, an entry point of `mmrl.environments`.

    blue circle                        search: the observation is a sheet with the headers of four pages
    2                                  open the second page of the sheet: the observation is the page at 56×56 pixels
    [{"bbox_2d": [10, 4, 30, 25]}]     look closer: the observation is the middle of the box (`shapeworld_zoom`)
    K                                  answer, which ends the episode, as any other text does

Each can be done again, and in any order. What cannot be carried out is answered by a text. The rewards of a turn say by
how much it surpasses the best one before: `retrieval` is the NDCG of the wanted page among the pages of the sheet,
`selection` 1 for the wanted page, and `crop` the intersection over union of the box and the wanted square. A further
one, `match`, is known at the end: the calls of the episode are matched one to one with those of an expert, and each has
the agreement of its arguments (MatchTIR); that of the answer is 1 if it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.environments.call_matching import matched_scores
from mmrl.environments.retrieval_quality import ndcg
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import parse_box
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl_shapeworld.vqa.canvas import PIXELS, colours_of
from mmrl_shapeworld.vqa.questions import Box
from mmrl_shapeworld.worlds.page_stacks import COLOURS, SHAPES, PageStack
from mmrl_shapeworld.worlds.zoom_environment import LEGIBLE_CUT, middle_of
from mmrl_shapeworld.worlds.zoom_pages import PAGE
from mmrl_shapeworld.worlds.zoom_splits import small_box

MAX_CHARACTERS = 2_000
"""The number of characters above which an action is an answer."""
MAX_TURNS = 8
KINDS = ("search", "select", "crop")
_WORDS = frozenset((*COLOURS, *SHAPES))
_RATIO = PAGE // PIXELS


@dataclass(frozen=True)
class PageCall:
    """A search, a selection or a crop, and what it came to."""

    kind: Literal["search", "select", "crop"]
    argument: tuple[str | int, ...]
    """The words of a query, a number of the sheet, or a box in pixels of 56."""
    agreement: float
    """With the expert's call of this kind, in [0, 1]; 0 for one that could not be carried out."""
    redundant: bool
    """It repeats a call, or its aim was reached before."""


class PageStacks:
    """Search a stack of pages, open one, look closer and read a letter; samples are shapeworld:pages-train."""

    name = "shapeworld_pages"
    instructions = ""
    deadline_s: float | None = None

    def __init__(self, crop: bool = True, max_turns: int = MAX_TURNS) -> None:
        """
        Args:
            crop: False: boxes are not carried out, so that a page is seen at 56×56 pixels alone.
            max_turns: actions of an episode, the answer included.
        """
        self.crop, self.max_turns = crop, max_turns

    def begin(self, sample: Sample, reader: MediaReader) -> PageStackEpisode:
        """Begin with the whole stack unseen."""
        try:
            stack = PageStack.from_dict(sample.answer if isinstance(sample.answer, Mapping) else {})
        except ValueError as err:
            raise DataError(f"sample {sample.id!r}: answer: {err}") from None
        return PageStackEpisode(stack, self.crop)


class PageStackEpisode:
    """The calls and the answer of one row."""

    def __init__(self, stack: PageStack, crop: bool = True, draws: bool = True) -> None:
        """`draws=False` leaves the pictures of observations out, for annotators, who know what is there."""
        self.stack, self._can_crop, self._draws = stack, crop, draws
        self.sheet: tuple[int, ...] = ()
        """The pages of the last search, as the sheet shows them."""
        self.opened: int | None = None
        """The page that was opened last."""
        self.cut: Box | None = None
        """The part of it that was cut out last, in pixels of the page; None: it was not looked at closer."""
        self.calls: list[PageCall] = []
        self._found: list[int] = []  # pages of all searches, the best of the first search first
        self._best = {"retrieval": 0.0, "selection": 0.0, "crop": 0.0}
        self._hit = False
        self._answer: str | None = None
        self._ended: str | None = None

    def step(self, action: str | None) -> Step:
        """Carry out a call, or take an answer."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        text = None if action is None else _final(action)
        words = () if text is None else tuple(text.split())
        if words and len(words) <= 4 and _WORDS.issuperset(words):
            return self._search(words)
        if text is not None and text.isascii() and text.isdigit() and len(text) == 1:
            return self._select(int(text))
        if text is not None and (box := _box_in(text)) is not None:
            return self._crop(box)
        self._answer, self._ended = text, "cut_off" if action is None else "answer"
        return Step(None)

    def outcome(self) -> Mapping[str, Any]:
        """Return the answer and what led to it.

        `success`; `retrieval`, the NDCG of the wanted page among all pages that were found, and `recall`, whether it is
        among them; `selection` and `iou`, the means over the selections and crops; `hit`, whether a crop shows the
        wanted letter alone and large enough to be read; `redundant`, the share of calls that add nothing.
        """
        right = self._answer == self.stack.page(self.stack.wanted).letters[0]
        scores = self._matched()
        return {
            "answer": self._answer,
            "success": right,
            "retrieval": ndcg(self._found, {self.stack.wanted}),
            "recall": self.stack.wanted in self._found,
            "selection": _mean([each.agreement for each in self.calls if each.kind == "select"]),
            "iou": _mean([each.agreement for each in self.calls if each.kind == "crop"]),
            "hit": self._hit,
            "redundant": _mean([float(each.redundant) for each in self.calls]),
            "calls": len(self.calls),
            "ended": self._ended,
            "turn_rewards": {"match": [*scores, *([float(right)] if self._ended == "answer" else [])]},
        }

    def _search(self, words: tuple[str, ...]) -> Step:
        stack = self.stack
        found = stack.search(words)
        redundant = stack.wanted in self._found
        self._found += found
        self.sheet, self.opened, self.cut = tuple(sorted(found)), None, None
        shared = {*words} & {*stack.header}
        agreement = len(shared) / len({*words} | {*stack.header})
        return self._done("search", words, agreement, redundant, ("retrieval", ndcg(found, {stack.wanted})))

    def _select(self, number: int) -> Step:
        if not 1 <= number <= len(self.sheet):
            return self._refused("select", (number,), f"The sheet has {len(self.sheet)} pages.")
        page = self.sheet[number - 1]
        redundant = page == self.opened or self.opened == self.stack.wanted
        self.opened, self.cut = page, None
        right = float(page == self.stack.wanted)
        return self._done("select", (number,), right, redundant, ("selection", right))

    def _crop(self, box: Box) -> Step:
        if self.opened is None or not self._can_crop:
            return self._refused("crop", box, "There is no page." if self.opened is None else "It is not enlarged.")
        redundant = self._hit
        page = self.stack.page(self.opened)
        self.cut = middle_of(_at_full_size(box), (PAGE, PAGE))
        overlap = _iou(box, small_box(page, 0)) if self.opened == self.stack.wanted else 0.0
        whole = [_contains(self.cut, each) for each in page.letter_boxes]
        legible = self.cut[2] - self.cut[0] <= LEGIBLE_CUT
        self._hit |= self.opened == self.stack.wanted and whole[0] and sum(whole) == 1 and legible
        return self._done("crop", box, overlap, redundant, ("crop", overlap))

    def picture(self) -> Image.Image:
        """Return what the last call shows [56, 56] in RGB: a sheet, a page, or a part of it."""
        if self.opened is None:
            return Image.fromarray(colours_of(self.stack.sheet(self.sheet)[0]))
        if self.cut is None:
            return self.stack.small_picture(self.opened)
        whole = self.stack.picture(self.opened)
        return whole.crop(self.cut).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)

    def _done(
        self,
        kind: Literal["search", "select", "crop"],
        argument: tuple[str | int, ...],
        agreement: float,
        redundant: bool,
        reward: tuple[str, float],
    ) -> Step:
        redundant = redundant or any((each.kind, each.argument) == (kind, argument) for each in self.calls)
        self.calls.append(PageCall(kind, argument, agreement, redundant))
        name, value = reward
        gain = max(0.0, value - self._best[name])
        self._best[name] += gain
        observation = Observation(images=(self.picture(),) if self._draws else ())
        return Step(observation, {name: gain}, {kind: agreement, "redundant": float(redundant)})

    def _refused(self, kind: Literal["select", "crop"], argument: tuple[int, ...], reason: str) -> Step:
        self.calls.append(PageCall(kind, argument, 0.0, True))
        return Step(Observation(reason), {}, {"redundant": 1.0})

    def _matched(self) -> list[float]:
        """Return the agreement of each call with the expert's call that it is matched with, and 0 for the others."""
        table = [[each.agreement if each.kind == kind else 0.0 for kind in KINDS] for each in self.calls]
        return matched_scores(table)


def _final(action: str) -> str | None:
    try:
        return answer_text(action) if len(action) <= MAX_CHARACTERS else None
    except InvalidAnswer:
        return None


def _box_in(text: str) -> Box | None:
    """Return the box that a text names, in whole pixels of 56; None if it names none."""
    try:
        x1, y1, x2, y2 = parse_box(text, "pixel", (float(PIXELS), float(PIXELS)))
    except InvalidAnswer:
        return None
    left, top = min(max(int(x1), 0), PIXELS - 1), min(max(int(y1), 0), PIXELS - 1)
    return left, top, min(max(round(x2), left + 1), PIXELS), min(max(round(y2), top + 1), PIXELS)


def _at_full_size(box: Box) -> Box:
    x1, y1, x2, y2 = box
    return _RATIO * x1, _RATIO * y1, _RATIO * x2, _RATIO * y2


def _contains(outer: Box, inner: Box) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and outer[2] >= inner[2] and outer[3] >= inner[3]


def _iou(first: Box, second: Box) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    both = max(0, width) * max(0, height)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (first, second)]
    return both / (sum(areas) - both)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
