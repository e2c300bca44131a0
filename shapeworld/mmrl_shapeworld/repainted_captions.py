"""Captions of two things, none of them blue, for two rewards that disagree: its facts, and the share of what is blue.

A writer of prompts may keep "a red circle and a green square" as it is, or have one thing or both painted blue: the
more is blue, the fewer facts of the caption a picture shows. The `answer` is the caption. `shapeworld:repainted-train`,
`-development` and `-validation` share no caption; `repainted-taught` has those of training, with demonstrations of a
writer that does one or another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.captions import RELATIONS, SEEN_KINDS, Caption, Clause
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS

BLUE = "blue"
SPLITS = {"repainted-train": 80, "repainted-development": 32, "repainted-validation": 48}
"""Captions of each split. Settings are chosen on development; validation is for results."""
TAUGHT = "repainted-taught"
"""The captions of training, each `TIMES` times, with a demonstration."""
NAMES = (*SPLITS, TAUGHT)
TIMES = 8
PAINTED = (0.4, 0.4, 0.2)
"""The share of demonstrations in which no thing, one of them, or both are blue."""
_PLAIN = tuple(kind for kind in SEEN_KINDS if kind[0] != BLUE)


class ColourShare(Reward):
    """The share of all that is drawn, by area, that has one colour, in [0, 1]; 0 of an empty picture."""

    name = "colour_share"
    needs = ("image",)
    range = (0.0, 1.0)

    def __init__(self, colour: str = BLUE) -> None:
        """`colour`: one of the four of ShapeWorld."""
        if colour not in COLOURS:
            raise ValueError(f"colour is {colour!r}, expected one of {', '.join(COLOURS)}")
        self.colour = colour

    def score_one(self, item: RewardInput) -> float:
        """Measure one picture."""
        return colour_share(answer_image(item.image), self.colour)


def colour_share(picture: Image.Image, colour: str) -> float:
    """Return the share of the pixels that are no background whose nearest colour of the palette is `colour`."""
    rgb = np.asarray(picture.convert("RGB"), np.float32)
    palette = np.array([BACKGROUND, *COLOURS.values()], np.float32)
    nearest = np.linalg.norm(rgb[:, :, None] - palette, axis=-1).argmin(-1)
    drawn = int((nearest > 0).sum())
    return float((nearest == 1 + list(COLOURS).index(colour)).sum()) / drawn if drawn else 0.0


@cache
def samples(split: str) -> list[Sample]:
    """Return a split: the prompt is the caption, the `answer` the caption as data, and the source its form.

    Raises:
        KeyError: there is no such split.
    """
    if split == TAUGHT:
        rng = np.random.default_rng(193)
        return [
            _sample(f"{split}-{number:03d}-{time}", caption, demonstrated(caption, rng))
            for number, caption in enumerate(_of_split("repainted-train"))
            for time in range(TIMES)
        ]
    return [_sample(f"{split}-{number:03d}", caption) for number, caption in enumerate(_of_split(split))]


def demonstrated(caption: Caption, rng: np.random.Generator) -> Caption:
    """Return the caption as it stands, or with one thing or both of them blue."""
    first, second = caption.clauses
    blue = int(rng.choice(3, p=PAINTED))
    painted = (blue == 2, blue == 2) if blue != 1 else ((True, False), (False, True))[int(rng.integers(2))]
    clauses = [replace(each, colour=BLUE) if now else each for each, now in zip((first, second), painted, strict=True)]
    return Caption(tuple(clauses), caption.relation)


def _of_split(split: str) -> list[Caption]:
    every, names = list(_captions()), list(SPLITS)
    order = np.random.default_rng(191).permutation(len(every))
    size, begin = SPLITS[split], sum(SPLITS[name] for name in names[: names.index(split)])
    return [every[number] for number in order[begin : begin + size]]


def _captions() -> Iterator[Caption]:
    """Yield all captions of two things of different shapes, so that they are still two kinds when both are blue."""
    for first, second, relation in product(_PLAIN, _PLAIN, (None, *RELATIONS)):
        if first[1] != second[1]:
            yield Caption((Clause(1, *first), Clause(1, *second)), relation)


def _sample(id: str, caption: Caption, written: Caption | None = None) -> Sample:
    return Sample(
        id=id,
        prompt=str(caption),
        answer=caption.as_dict(),
        source=caption.form,
        demonstration=None if written is None else str(written),
    )
