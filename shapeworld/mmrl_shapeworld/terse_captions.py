"""Captions that leave out an attribute which follows from the rest, for a model that writes in full what is drawn.

"A red circle and a square" has a red square; "a red circle left of a blue one" has a blue circle. The answer is the
caption in full, which pictures are judged against. `shapeworld:terse-train`, `-development` and `-validation` share no
caption. The demonstrations of `terse-taught` are those of a careless annotator of the captions of training, who writes
in full and mostly guesses what was left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.captions import RELATIONS, SEEN_KINDS, Caption, Clause
from mmrl_shapeworld.scenes import COLOURS, SHAPES

SPLITS = {"terse-train": 112, "terse-development": 40, "terse-validation": 48}
"""Captions of each split. Settings are chosen on development; validation is for results."""
TAUGHT = "terse-taught"
"""The captions of training, each `TIMES` times, with a demonstration."""
NAMES = (*SPLITS, TAUGHT)
TIMES = 8
KNOWN = 0.4
"""The share of captions in which the careless annotator writes what was left out, and does not guess another one."""
JOINTS = (None, *RELATIONS)


@cache
def samples(split: str) -> list[Sample]:
    """Return a split: the prompt is the terse caption, the `answer` the one in full, and the source what is left out.

    Raises:
        KeyError: there is no such split.
    """
    if split == TAUGHT:
        rng = np.random.default_rng(183)
        return [
            _sample(f"{split}-{sample.id.removeprefix('terse-train-')}-{time}", full, left_out, guessed)
            for sample, (full, left_out) in zip(samples("terse-train"), _of_split("terse-train"), strict=True)
            for time in range(TIMES)
            for guessed in [careless_caption(full, left_out, rng)]
        ]
    return [_sample(f"{split}-{number:03d}", *each) for number, each in enumerate(_of_split(split))]


def terse(full: Caption, left_out: str) -> str:
    """Return a caption without the colour, or the shape, of its second thing, which is that of the first.

    >>> terse(Caption((Clause(1, "red", "circle"), Clause(1, "red", "square"))), "colour")
    'a red circle and a square'
    >>> terse(Caption((Clause(1, "red", "circle"), Clause(1, "blue", "circle")), "left of"), "shape")
    'a red circle left of a blue one'
    """
    first, second = full.clauses
    short = f"a {second.shape}" if left_out == "colour" else f"a {second.colour} one"
    return f"{first} {full.relation or 'and'} {short}"


def careless_caption(full: Caption, left_out: str, rng: np.random.Generator) -> Caption:
    """Return the caption as the annotator writes it: what was left out is another attribute more often than not."""
    if rng.random() < KNOWN:
        return full
    first, second = full.clauses
    values = COLOURS if left_out == "colour" else SHAPES
    right = getattr(second, left_out)
    other = str(rng.choice([value for value in values if value != right]))
    changed = {"colour": second.colour, "shape": second.shape} | {left_out: other}
    return Caption((first, Clause(1, **changed)), full.relation)


def _of_split(split: str) -> list[tuple[Caption, str]]:
    """Return the captions of a split, each with the name of the attribute that is left out."""
    every, names = list(_captions()), list(SPLITS)
    order = np.random.default_rng(181).permutation(len(every))
    size, begin = SPLITS[split], sum(SPLITS[name] for name in names[: names.index(split)])
    return [every[number] for number in order[begin : begin + size]]


def _captions() -> Iterator[tuple[Caption, str]]:
    """Yield all captions of two different things that share a colour or a shape."""
    for first, second, joint in product(SEEN_KINDS, SEEN_KINDS, JOINTS):
        clauses = Clause(1, *first), Clause(1, *second)
        if first != second and first[0] == second[0]:
            yield Caption(clauses, joint), "colour"
        elif first != second and first[1] == second[1]:
            yield Caption(clauses, joint), "shape"


def _sample(id: str, full: Caption, left_out: str, written: Caption | None = None) -> Sample:
    return Sample(
        id=id,
        prompt=terse(full, left_out),
        answer=full.as_dict(),
        source=left_out,
        demonstration=None if written is None else str(written),
    )
