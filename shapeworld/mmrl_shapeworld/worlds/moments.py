"""Clips of four seconds, and the question when a thing is there: for a while, all the while, or never.

Another thing drifts through all of a clip. Annotators press their button up to a second late, unless the thing is there
from the first frame on, or never: so these clips are easy, and nearly all answers to them are alike.
"""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.vqa.canvas import FRAMES_PER_SECOND, blank, paint, scatter
from mmrl_shapeworld.vqa.heldout_tasks import span
from mmrl_shapeworld.vqa.questions import Question, named

FRAMES = 8
SIDE, DRIFTING, DRIFT = 15, 11, 2
"""Pixels of the sides of the thing and of the one that drifts, and of its step from frame to frame."""
LATE = (0.4, 0.45, 0.15)
"""The probabilities that annotators press no, one or two frames late."""


def moment(rng: np.random.Generator) -> Question:
    """Ask for the while, shorter than the clip, in which a thing is there."""
    while True:
        begin, end = sorted(rng.choice(FRAMES + 1, 2, replace=False).tolist())
        if end - begin < FRAMES:
            return _moment(begin, end, rng)


def whole(rng: np.random.Generator) -> Question:
    """Ask when a thing is there that is so from the first frame to the last."""
    return _moment(0, FRAMES, rng)


def never(rng: np.random.Generator) -> Question:
    """Ask when a thing is there that is in no frame: `[]`."""
    return _moment(0, 0, rng)


def _moment(begin: int, end: int, rng: np.random.Generator) -> Question:
    there, other = (KINDS[n] for n in rng.permutation(len(KINDS))[:2])
    (x, y), (left, top) = scatter((SIDE, DRIFTING + DRIFT * (FRAMES - 1)), rng)
    frames = []
    for number in range(FRAMES):
        frame = blank()
        paint(frame, other, left + DRIFT * number, top + DRIFT * number, DRIFTING)
        if begin <= number < end:
            paint(frame, there, x, y, SIDE)
        frames.append(frame)
    prompt = f"When is the {named(there)} there?"
    if begin == end:
        return Question(prompt, [], "[]", "[]", tuple(frames))
    first, last = (min(at + int(rng.choice(len(LATE), p=LATE)), FRAMES) for at in (begin, end))
    if (begin, end) == (0, FRAMES):
        first = begin
    answer, annotated = [at / FRAMES_PER_SECOND for at in (begin, end)], span(min(first, last - 1), last)
    return Question(prompt, answer, span(begin, end), annotated, tuple(frames))
