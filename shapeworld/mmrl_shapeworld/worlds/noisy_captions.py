"""Pictures with captions of mixed quality: what is found on the web, rather than what annotators are paid for.

`shapeworld:noisy-captions-train` has three captions of each picture as demonstrations, each by an annotator who is
careful, hasty or guesses, and which of them is not said. `chosen` and `rejected` are the best and the worst of the
three by their facts, for preference learning on the same data. `-development` and `-validation` have none. The pictures
are those of the world `caption`. Samples name no reward: `FactCheck` reads their facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.vqa.canvas import png_uri
from mmrl_shapeworld.vqa.questions import Question
from mmrl_shapeworld.worlds.caption_facts import FactCheck
from mmrl_shapeworld.worlds.picture_captions import Facts, worded
from mmrl_shapeworld.worlds.reworded_captions import ATTRIBUTE_VALUES
from mmrl_shapeworld.worlds.world_splits import world_questions

SIZES = {"train": 384, "development": 256, "validation": 512}
"""Pictures of each split, the first of those of `caption`. Settings are chosen on development."""
NAMES = tuple(f"noisy-captions-{part}" for part in SIZES)
CAPTIONS = 3
"""Captions of each picture of training."""
ERRORS = (0.05, 0.5, 0.9)
"""The share of attributes that a careful, a hasty and a guessing annotator draws anew."""
_SEED = 103


@cache
def samples(split: str) -> list[Sample]:
    """Return a split, always the same; `metadata.facts` has the facts of a picture.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    part = split.rpartition("-")[2]
    questions = world_questions("caption", part)[: SIZES[part]]
    rng = np.random.default_rng((_SEED, NAMES.index(split)))
    return [
        _sample(f"{split}-{number:04d}", question, rng if part == "train" else None)
        for number, (_, question) in enumerate(questions)
    ]


def noisy_caption(things: Sequence[Facts], errors: float, rng: np.random.Generator) -> str:
    """Return a caption of the things, with this share of their attributes drawn anew."""
    seen = [
        {
            key: value if rng.random() > errors else str(rng.choice(ATTRIBUTE_VALUES[key]))
            for key, value in thing.items()
        }
        for thing in things
    ]
    return worded(seen, rng)


def facts_score(caption: str, things: Sequence[Facts]) -> float:
    """Return the F1 of a caption's facts."""
    item = RewardInput("", 0, "", text=caption, references={"facts": things})
    return float(FactCheck().score([item]).values[FactCheck.name][0])


def _sample(id: str, question: Question, rng: np.random.Generator | None) -> Sample:
    """Return a picture as data, with captions if there is a random stream for them."""
    captions = [] if rng is None else _captions(question.metadata["facts"], rng)
    ranked = sorted(captions, key=lambda each: facts_score(each, question.metadata["facts"]))
    return Sample(
        id=id,
        prompt=question.prompt,
        images=(png_uri(question.frames[0]),),
        answer=question.answer,
        source="caption",
        demonstration=captions or None,
        chosen=ranked[-1] if ranked else None,
        rejected=ranked[0] if ranked else None,
        metadata=question.metadata,
    )


def _captions(things: Sequence[Facts], rng: np.random.Generator) -> list[str]:
    """Return captions that are not all equally good, each by any annotator."""
    while True:
        found = [noisy_caption(things, float(rng.choice(ERRORS)), rng) for _ in range(CAPTIONS)]
        if len({facts_score(each, things) for each in found}) > 1:
            return found
