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

from mmrl.data.sample import Sample
from mmrl.rewards.core.picture_drawing import lacks_sample, painter_of
from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl_shapeworld.captions import SEEN_KINDS, Caption, sample_caption
from mmrl_shapeworld.checker import Reading, judge
from mmrl_shapeworld.unified_splits import caption_questions

SPLITS = {"composed-train": (191, 512), "composed-development": (192, 256), "composed-validation": (193, 384)}
"""Seed and size of each split, whose captions may repeat. Settings are chosen on `composed-development`."""
NAMES = tuple(SPLITS)
_QUARTERS = ("composed-train", "composed-train", "composed-development", "composed-validation")


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data: captions as often as `sample_caption` has each form.

    Raises:
        KeyError: there is no such split.
    """
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    found: list[Sample] = []
    while len(found) < size:
        caption = sample_caption(rng, SEEN_KINDS)
        if split_of(caption) == split and all(clause.size is None for clause in caption.clauses):
            found.append(
                Sample(
                    id=f"{split}-{len(found):04d}",
                    prompt=str(caption),
                    answer=caption.as_dict(),
                    source=f"draw-{caption.form}",
                    metadata={"questions": caption_questions(caption)},
                )
            )
    return found


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


class Composition(Reward):
    """1 if what a model of the run draws of a caption is strictly correct, by rules, else 0.

    `bound` is the share of things whose colour and shape are as named, `counted` whether there are as many things as
    the caption names, of any kind, and `credit` the checker's partial credit. What the policy answers is not read.
    """

    name, needs, range = "right", ("references.answer",), (0.0, 1.0)
    source = "docs/shapeworld.md"
    models = painters = ("painter",)

    def score_one(self, item: RewardInput) -> float:
        """Raise, since a model of a run draws."""
        raise ScoringFailed(f"{self.name} lets a model of a run draw, and here is none", "no_model")

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Draw all captions, and judge the pictures."""
        known = [item.sample for item in items if item.sample is not None]
        drawn = iter(painter_of(context, "painter").pictures(known, context.seed))
        scored: list[Scored] = []
        for item in items:
            if item.sample is None:
                scored.append(lacks_sample(self.name))
                continue
            caption = Caption.from_dict(item.references["answer"])
            verdict = judge(next(drawn)[0], caption)
            scored.append(
                {
                    self.name: float(verdict.strict),
                    "bound": bound(verdict.reading, caption),
                    "counted": float(len(verdict.reading.things) == caption.total),
                    "credit": verdict.score,
                }
            )
        return scored
