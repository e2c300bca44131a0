"""Clips with a shortcut in words: the colour that a question names nearly always tells where the thing goes.

In `shapeworld:tinted-train` (1,200) the thing goes its colour's way in nine of ten clips; `tinted-plain` has those
alone, on which nothing but the colour need be learnt. `tinted-development` (256) and `tinted-validation` (512) are as
training; `tinted-counter-development` (256) and `tinted-counter` (512) are counter-biased: no thing goes its colour's
way. `tinted-counter-later` (512) has more of these, for studies that have decided on `tinted-counter` before. In
`tinted-mostly-train` (1,200) the thing goes its colour's way in 74 of 100 clips, and `tinted-mostly-plain` has those
alone. No two splits share a question, but those of training with their plain ones.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.vqa.canvas import blank, gif_uri, paint
from mmrl_shapeworld.vqa.questions import FRAMES, MOVES, Question, named, tracks_of
from mmrl_shapeworld.worlds.world_splits import checksum

WAYS = dict(zip(("red", "green", "blue", "yellow"), MOVES, strict=True))
"""The way of each colour."""
AGREES = 0.9
"""The share of the clips of training, development and validation in which a thing goes its colour's way."""
MOSTLY = 0.74
"""The same of `tinted-mostly-train`: as many questions of CLEVRER need no inference (arXiv:2605.01324)."""
PLAIN = {"tinted-plain": "tinted-train", "tinted-mostly-plain": "tinted-mostly-train"}
"""The splits of training that the plain clips are of."""
SIZES = {
    "tinted-train": 1200,
    "tinted-development": 256,
    "tinted-validation": 512,
    "tinted-counter-development": 256,
    "tinted-counter": 512,
    "tinted-mostly-train": 1200,
    "tinted-counter-later": 512,
}
NAMES = (*SIZES, *PLAIN)
_SHARES = {
    "tinted-train": range(0, 4),
    "tinted-development": range(4, 5),
    "tinted-validation": range(5, 6),
    "tinted-counter-development": range(6, 7),
    "tinted-counter": range(7, 8),
    "tinted-mostly-train": range(0, 4),
    "tinted-counter-later": range(7, 8),
}
"""The checksums, modulo 8, of the questions that a split may have."""
_BEFORE = {"tinted-mostly-train": "tinted-train", "tinted-counter-later": "tinted-counter"}
"""The split whose questions another one with the same checksums leaves out."""
_SEED = 97


def tinted_clip(agrees: float, rng: np.random.Generator) -> Question:
    """Return a clip of two things that go different ways, and the question where one goes.

    It goes its colour's way with probability `agrees`, else one of the three others; `metadata["plain"]` says which.
    """
    wanted, other = (KINDS[n] for n in rng.permutation(len(KINDS))[:2])
    plain, names = bool(rng.random() < agrees), list(MOVES)
    own = WAYS[wanted[0]]
    way = own if plain else str(rng.choice([name for name in names if name != own]))
    away = str(rng.choice([name for name in names if name != way]))
    steps = rng.integers(5, 9, 2).tolist()
    tracks = tracks_of(((way, steps[0]), (away, steps[1])), rng)
    frames = [blank() for _ in range(FRAMES)]
    for kind, (left, top, dx, dy, side) in zip((other, wanted), tracks[::-1], strict=True):
        for number, frame in enumerate(frames):
            paint(frame, kind, left + number * dx, top + number * dy, side)
    letters = dict(zip(names, "ABCD", strict=True))
    options = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    prompt = f"Which way does the {named(wanted)} move? {options}."
    right, metadata = letters[way], {"choices": names, "plain": plain, "other": named(other)}
    return Question(prompt, right, right, letters[away], tuple(frames), metadata)


@cache
def tinted_questions(split: str) -> tuple[Question, ...]:
    """Return the questions of a split, always the same, and none twice.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    if split in PLAIN:
        return tuple(each for each in tinted_questions(PLAIN[split]) if each.metadata["plain"])
    rng = np.random.default_rng((_SEED, list(SIZES).index(split)))
    agrees = 0.0 if "counter" in split else MOSTLY if "mostly" in split else AGREES
    used = {checksum(each) for each in tinted_questions(_BEFORE[split])} if split in _BEFORE else set()
    found: dict[int, Question] = {}
    while len(found) < SIZES[split]:
        question = tinted_clip(agrees, rng)
        if (known := checksum(question)) % 8 in _SHARES[split] and known not in used:
            found.setdefault(known, question)
    return tuple(found.values())


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have the right answers as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    return [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=question.prompt,
            videos=(gif_uri(question.frames),),
            answer=question.answer,
            task="video-qa",
            source="tinted-counter" if "counter" in split else "tinted",
            demonstration=question.right if split in (*PLAIN, *PLAIN.values()) else None,
            rewards=(RewardChoice("multiple_choice"),),
            metadata=question.metadata,
        )
        for number, question in enumerate(tinted_questions(split))
    ]
