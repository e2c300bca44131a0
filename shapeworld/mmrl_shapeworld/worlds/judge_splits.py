"""Data sets for judges: pairs of pictures in both orders, with traces of a careless judge as demonstrations.

`shapeworld:judge-train`, `-development` and `-validation` are samples in both orders, side by side: the prompt is the
caption, the images are both pictures, the answer is A or B. Sources name the dimension in which the worse picture is
wrong (`judge-number`). `shapeworld:judge-pairs-train` and so on are the same pairs as `chosen` and `rejected`. The
demonstrations of `judge-turns-train` are episodes of two turns, for the environment `rechecks`.

`judge-specked-train`, `-development` and `-validation` are the same pairs with specks in both pictures, which no judge
has seen before: small squares in the colours of things, which do not count.

Of the pairs of `judge-weighed-train` and so on both pictures are wrong, the better one in one dimension, and the worse
one in two others, so that what speaks for each has to be weighed.

The prompts of `judge-doubted-train` and so on end with two dimensions that are in doubt, of which one decides. The
demonstrations of `judge-doubted-turns-train` pick these two.

Every second pair of `judge-stressed-train`, `-development` and `-validation` has a stressed caption (sources
`judge-stressed` and `judge-plain`). Demonstrations choose their criteria by the caption; in `judge-rubric-train`, which
has the same pairs, they go through all dimensions and count each alike.

`judge-stressed-later` and `judge-doubted-later` have the pairs that would have come after those of `-validation`, for
studies that have decided on these before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal, get_args

import numpy as np

from mmrl.data.judged_pairs import FIRST, both_orders
from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.canvas import png_uri
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.judge_traces import CARELESS, trace, weighed
from mmrl_shapeworld.worlds.picture_pairs import (
    DIMENSIONS,
    PicturePair,
    Values,
    sample_pair,
    sample_weighed_pair,
    specked,
)

SIZES = {"train": 1000, "development": 128, "validation": 256}
"""Pairs of each split, each of which is two samples. Settings are chosen on `development`; `validation` is for
results."""
QUESTION = "{prompt}"
"""The question of these judges is the caption alone."""
NAMES = (
    *(f"judge{kind}-{part}" for kind in ("", "-pairs", "-specked", "-weighed", "-stressed") for part in SIZES),
    *(f"judge-doubted-{part}" for part in SIZES),
    "judge-stressed-later",
    "judge-doubted-later",
    "judge-turns-train",
    "judge-doubted-turns-train",
    "judge-rubric-train",
)
PICKS = 2
"""The number of dimensions that a careless judge of two turns picks."""
FOUND = 0.7
"""The probability that the one that decides is among them, if it is not there by chance."""
LATER = "later"
"""The pairs that would have come next after those of `validation`, as many."""
_SEED = 137
Kind = Literal["plain", "stressed", "weighed"]
"""The ways in which pairs are drawn."""
_KINDS: dict[str, Kind] = {
    "judge-stressed": "stressed",
    "judge-rubric": "stressed",
    "judge-weighed": "weighed",
}

Demonstrator = Callable[[PicturePair, tuple[Values, Values], np.random.Generator], object]
"""From a pair and what its pictures show, in the order in which they stand, to a demonstration."""


@cache
def picture_pairs(part: str, kind: Kind = "plain") -> tuple[PicturePair, ...]:
    """Return the pairs of a split, always the same; their dimensions take turns.

    Of `stressed` ones every second caption is stressed; `weighed` ones are all of `sample_weighed_pair`.
    """
    of = "validation" if part == LATER else part
    known = SIZES[of] if part == LATER else 0
    rng = np.random.default_rng((_SEED, list(SIZES).index(of), get_args(Kind).index(kind)))

    def draw(number: int) -> PicturePair:
        dimension = DIMENSIONS[number // 2 % len(DIMENSIONS)]
        if kind == "weighed":
            return sample_weighed_pair(rng, dimension)
        return sample_pair(rng, dimension, kind == "stressed" and number % 2 == 1)

    return draw_disjoint(of, known + SIZES[of], draw)[known:]


def samples(split: str) -> list[Sample]:
    """Return a split as data, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of judges: choose one of {', '.join(NAMES)}")
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    kind, _, part = split.rpartition("-")
    pairs = picture_pairs(part, _KINDS.get(kind, "plain"))
    if kind == "judge-pairs":
        return tuple(pair_sample(pair, f"{split}-{number:04d}") for number, pair in enumerate(pairs))
    demonstrators: dict[str, Demonstrator] = {
        "judge-turns": careless_turns,
        "judge-doubted-turns": careless_doubts,
        "judge-stressed": careless_by_caption,
    }
    demonstrator = demonstrators.get(kind, careless) if part == "train" else None
    found = in_both_orders(split, pairs, demonstrator, kind == "judge-specked")
    if kind.startswith("judge-doubted"):
        doubts = {f"{split}-{number:04d}": " ".join(in_doubt(pair)) for number, pair in enumerate(pairs)}
        found = [replace(each, prompt=f"{each.prompt}, {doubts[each.metadata['pair']]}") for each in found]
    if kind in ("judge-stressed", "judge-rubric"):
        stressed = {f"{split}-{number:04d}": pair.stressed for number, pair in enumerate(pairs)}
        sources = {True: "judge-stressed", False: "judge-plain"}
        found = [replace(each, source=sources[stressed[each.metadata["pair"]]]) for each in found]
    return tuple(found)


def in_both_orders(
    split: str, pairs: tuple[PicturePair, ...], demonstrator: Demonstrator | None, specks: bool = False
) -> list[Sample]:
    """Return pairs in both orders, with demonstrations where there is a demonstrator, and specks if wanted."""
    rng = np.random.default_rng((_SEED, len(SIZES)))
    found = []
    for number, pair in enumerate(pairs):
        for sample in both_orders(pair_sample(pair, f"{split}-{number:04d}", specks), QUESTION, task=None):
            pictures = (pair.better, pair.worse) if sample.answer == FIRST else (pair.worse, pair.better)
            shows = demonstrator(pair, pictures, rng) if demonstrator is not None else None
            found.append(replace(sample, demonstration=shows))
    return found


def pair_sample(pair: PicturePair, id: str, specks: bool = False) -> Sample:
    """Return a pair with the better picture as `chosen` and the worse one as `rejected`, both with specks if wanted."""
    better, worse = pair.pictures()
    if specks:
        better, worse = specked(better, pair.seeds[0]), specked(worse, pair.seeds[1])
    return Sample(
        id=id,
        prompt=pair.prompt,
        chosen=png_uri(better),
        rejected=png_uri(worse),
        source=f"judge-{pair.dimension}",
        metadata={"dimension": pair.dimension},
    )


def careless(pair: PicturePair, pictures: tuple[Values, Values], rng: np.random.Generator) -> str:
    """Return a careless judge's thoughts about all dimensions, each of which counts alike, and its verdict."""
    return trace(CARELESS, pair.caption, pictures, rng)


def careless_by_caption(pair: PicturePair, pictures: tuple[Values, Values], rng: np.random.Generator) -> str:
    """Return the thoughts of a careless judge who chooses criteria: of a stressed caption the dimension that counts.

    It is looked at first, decides alone, and is followed by one other; without stress, all dimensions count alike.
    """
    if not pair.stressed:
        return careless(pair, pictures, rng)
    others = [each for each in DIMENSIONS if each != pair.dimension]
    chosen = (pair.dimension, str(rng.choice(others)))
    return trace(CARELESS, pair.caption, pictures, rng, chosen, order=chosen[:1])


def careless_turns(
    pair: PicturePair, pictures: tuple[Values, Values], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Return the turns of a careless judge who picks dimensions and reads them, and then rechecks them."""
    order = [str(each) for each in rng.permutation(DIMENSIONS)]
    if rng.random() < FOUND:
        order = [pair.dimension, *(each for each in order if each != pair.dimension)]
    return _turns([each for each in DIMENSIONS if each in order[:PICKS]], pair, pictures, rng)


def careless_doubts(
    pair: PicturePair, pictures: tuple[Values, Values], rng: np.random.Generator
) -> dict[str, list[str]]:
    """Return the turns of a careless judge who picks the dimensions that are in doubt."""
    return _turns(in_doubt(pair), pair, pictures, rng)


def in_doubt(pair: PicturePair) -> list[str]:
    """Return two dimensions, always the same for a pair: the one that decides, and another."""
    others = [each for each in DIMENSIONS if each != pair.dimension]
    chosen = (pair.dimension, others[pair.seeds[0] % len(others)])
    return [each for each in DIMENSIONS if each in chosen]


def _turns(
    picked: list[str], pair: PicturePair, pictures: tuple[Values, Values], rng: np.random.Generator
) -> dict[str, list[str]]:
    judge = replace(CARELESS, leaves_out=0.0)
    suspected = weighed(judge.readings(picked, *pictures, rng), pair.caption)
    return {"turns": [suspected, trace(judge, pair.caption, pictures, rng, picked)]}
