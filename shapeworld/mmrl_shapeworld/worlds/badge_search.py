"""`BadgeSearch`: name a box, get the record whose badge looks most like it, and read the letter of the record.

    [{"bbox_2d": [10, 4, 30, 25]}]     search: the observation is the record of the badge that was found
    K                                  the answer

The index has all badges (`badge_pages.BADGES`), embedded as `pixel_vectors`. With `queries="whole"` a box is named,
too, and the whole page is searched in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import CallRejected, Observation, Step, ToolContext
from mmrl.environments.picture_index import PictureIndex
from mmrl.environments.tools.picture_regions import box_in_picture
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import parse_box
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl_shapeworld.vqa.canvas import PALETTE
from mmrl_shapeworld.worlds.badge_pages import BADGES, BadgePage, badge_picture, record_picture
from mmrl_shapeworld.worlds.zoom_environment import INSTRUCTIONS, MAX_CHARACTERS

SIDE = 8
"""Width and height at which pictures are compared, in pixels."""
INDEXED = 72
"""Width and height of the badges in the index, in pixels."""


def pixel_vectors(pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
    """Return unit vectors [B, 192]: pictures at 8×8 pixels, less the mean of each channel."""
    small = [
        np.asarray(each.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX), np.float32) for each in pictures
    ]
    values = np.stack(small)
    flat = (values - values.mean(axis=(1, 2), keepdims=True)).reshape(len(pictures), -1)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6), np.float32)


@cache
def badge_index() -> PictureIndex:
    """Return the index of all badges."""
    return PictureIndex(pixel_vectors, [Image.fromarray(PALETTE[badge_picture(each, INDEXED)]) for each in BADGES])


class BadgeSearch:
    """Find a badge by how it looks, then read its letter; samples are shapeworld:badges-train, at 56 x 56 pixels."""

    name = "shapeworld_badges"
    max_turns = 2
    deadline_s: float | None = None
    instructions = INSTRUCTIONS["require"]
    space = "pixel"

    def __init__(
        self, queries: Literal["crops", "whole"] = "crops", scales: Sequence[float] = (0.7, 0.8, 0.9, 1.0, 1.15, 1.3)
    ) -> None:
        """
        Args:
            queries: crops, of the box that was named; or whole, of the page.
            scales: by which a box is enlarged about its middle; each is a query.
        """
        if queries not in ("crops", "whole") or not scales or not all(0 < scale <= 10 for scale in scales):
            raise ConfigError(
                f"{self.name}: queries is {queries!r}; it is crops or whole. scales are {list(scales)}; expected one "
                "or several above 0, at most 10"
            )
        self.queries, self.scales = queries, tuple(scales)

    def begin(self, sample: Sample, reader: MediaReader) -> BadgeEpisode:
        """Begin; the page is read when the first box is named."""
        wanted, seed = sample.metadata.get("wanted"), sample.metadata.get("letters")
        if len(sample.images) != 1 or not isinstance(wanted, int) or not isinstance(seed, int):
            raise DataError(f"sample {sample.id!r}: no page with badges: take those of shapeworld:badges-train")
        return BadgeEpisode(self, ToolContext(sample, reader), wanted, BadgePage((), (), seed))


class BadgeEpisode:
    """The search and the answer of one row."""

    def __init__(self, environment: BadgeSearch, context: ToolContext, wanted: int, letters: BadgePage) -> None:
        self._environment, self._context = environment, context
        self._wanted, self._letters = wanted, letters
        self._found: int | None = None
        self._answer: str | None = None
        self._ended: str | None = None

    def step(self, action: str | None) -> Step:
        """Search with a box, or take the answer."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        if action is None:
            self._ended = "cut_off"
        elif self._found is not None:
            self._ended, self._answer = "answer", _final(action)
        elif not self._search(action):
            self._ended = "no_box"
        else:
            colour, letter = BADGES[self._found or 0][0], self._letters.letter(self._found or 0)
            hit = {"hit": float(self._found == self._wanted)}
            return Step(Observation(images=(record_picture(colour, letter),)), {}, hit)
        return Step(None)

    def outcome(self) -> Mapping[str, Any]:
        """Return the answer, whether it is right, and whether the search found the wanted badge."""
        return {
            "answer": self._answer,
            "success": self._answer == self._context.sample.answer,
            "hit": self._found is not None and self._found == self._wanted,
            "searched": self._found is not None,
            "ended": self._ended,
        }

    def _search(self, action: str) -> bool:
        """Search for what a turn names, and return whether it named a box."""
        if len(action) > MAX_CHARACTERS:
            return False
        width, height = self._context.input_size(0)
        try:
            named = parse_box(answer_text(action), "pixel", (float(width), float(height)))
            box = box_in_picture(self._context, 0, named, "pixel")
        except (InvalidAnswer, CallRejected):
            return False
        scene, scales = self._context.image(0), self._environment.scales
        if self._environment.queries == "whole":
            box, scales = (0, 0, *scene.size), (1.0,)
        self._found = badge_index().search(scene, [box], scales, 1)[0][0][0]
        return True


def _final(action: str) -> str | None:
    try:
        return answer_text(action)
    except InvalidAnswer:
        return None
