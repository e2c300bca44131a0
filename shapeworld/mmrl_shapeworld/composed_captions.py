"""Captions to draw, with the questions that they answer, and how well a picture is composed.

`shapeworld:composed-train`, `-development` and `-validation` have no captions in common: the set of clauses, in any
order and with any relation, decides which split a caption belongs to. So what is measured names other things, or other
numbers of them, than what is learnt from. No caption names a size. `Composition` measures what is drawn.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL.Image import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.picture_drawing import lacks_sample, painter_of
from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl_shapeworld.captions import SEEN_KINDS, Caption, sample_caption
from mmrl_shapeworld.checker import Reading, judge
from mmrl_shapeworld.unified_splits import caption_questions

SPLITS = {"composed-train": (191, 160), "composed-development": (192, 64), "composed-validation": (193, 64)}
"""Seed and size of each split, whose captions all differ. Settings are chosen on `composed-development`."""
NAMES = tuple(SPLITS)
_QUARTERS = ("composed-train", "composed-train", "composed-development", "composed-validation")


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    different: dict[str, Caption] = {}
    while len(different) < size:
        caption = sample_caption(rng, SEEN_KINDS)
        if split_of(caption) == split and all(clause.size is None for clause in caption.clauses):
            different.setdefault(str(caption), caption)
    return [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=str(caption),
            answer=caption.as_dict(),
            source=f"draw-{caption.form}",
            metadata={"questions": caption_questions(caption)},
        )
        for number, caption in enumerate(different.values())
    ]


def split_of(caption: Caption) -> str:
    """Return the split that has the captions of these clauses, in any order and with any relation."""
    named = ", ".join(sorted(map(str, caption.clauses)))
    return _QUARTERS[zlib.crc32(named.encode()) % len(_QUARTERS)]


def bound(reading: Reading, caption: Caption) -> float:
    """Return the share of things whose colour and shape are as named, in [0, 1], over the larger of both numbers.

    So a thing that is missing and one that no clause names count alike.
    """
    drawn = Counter((thing.colour, thing.shape) for thing in reading.things)
    named: Counter[tuple[str, str | None]] = Counter()
    for clause in caption.clauses:
        named[clause.colour, clause.shape] += clause.count
    return (drawn & named).total() / max(drawn.total(), named.total())


class Composition(RowsReward):
    """The share of a caption's pictures, as a model of the run draws them, that are strictly correct by rules.

    `bound` is the share of things whose colour and shape are as named, `counted` whether there are as many things as
    the caption names, of any kind, and `credit` the checker's partial credit. What the policy answers is not read.
    """

    name, needs, range = "right", ("references.answer",), (0.0, 1.0)
    source = "docs/shapeworld.md"
    models = painters = ("painter",)

    def __init__(self, draws: int = 8) -> None:
        """`draws`: the pictures of a caption, over which all values are means."""
        if draws < 1:
            raise RewardError(f"{self.name}: draws is {draws}; it is 1 or more")
        self._draws = draws

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Draw all captions, and judge the pictures."""
        known = [item.sample for item in items if item.sample is not None]
        drawn = iter(painter_of(context, "painter").pictures(known, context.seed, self._draws))
        return [
            lacks_sample(self.name)
            if item.sample is None
            else self._means(next(drawn), Caption.from_dict(item.references["answer"]))
            for item in items
        ]

    def _means(self, pictures: Sequence[Image], caption: Caption) -> dict[str, float]:
        verdicts = [judge(picture, caption) for picture in pictures]
        values: dict[str, list[float]] = {
            self.name: [verdict.strict for verdict in verdicts],
            "bound": [bound(verdict.reading, caption) for verdict in verdicts],
            "counted": [len(verdict.reading.things) == caption.total for verdict in verdicts],
            "credit": [verdict.score for verdict in verdicts],
        }
        return {name: sum(found) / len(found) for name, found in values.items()}
