"""Clips of one thing that moves, judged on two axes that may disagree: what it is, and where it goes.

`match` says whether the thing of the prompt is seen, wherever it goes; `motion` how far what is drawn goes in the
direction of the prompt, be it what it may. `motion-pairs-train` and `-development` are pairs of drawn clips of a
prompt, which differ in the thing, in the direction, or in both; `motions-one-train` and others are prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.checker import read
from mmrl_shapeworld.motion import DIRECTIONS, Motion, draw_clip, sample_clip, sample_motion
from mmrl_shapeworld.scenes import BACKGROUND, picture_uri
from mmrl_shapeworld.task_rewards import moving_frames

AXES = ("match", "motion")
PAIRS = {"train": (71, 2048), "development": (72, 256)}
PROMPTS = {"train": (73, 1024), "development": (74, 256), "validation": (75, 384)}
"""Seed and size of each set."""
NAMES = (*(f"motion-pairs-{part}" for part in PAIRS), *(f"motions-one-{part}" for part in PROMPTS))
FULL_WAY = 0.3
"""The way from the first to the last frame, as a share of the side, that is worth the whole score."""
LEAST = 0.05
"""The least difference of two scores that makes one clip better."""


def match_of(frames: Sequence[Image.Image], motion: Motion) -> float:
    """Return how well the frames show the thing of a motion, in [0, 1]: half for its colour, half for its very kind.

    Dirt and further things lower it as they lower `judge_clip`.
    """
    (move,) = motion.moves
    scores = []
    for reading in map(read, frames):
        coloured = any(thing.colour == move.colour for thing in reading.things)
        exact = any((thing.colour, thing.shape) == (move.colour, move.shape) for thing in reading.things)
        extra = max(0, len(reading.things) - 1)
        scores.append((0.5 * coloured + 0.5 * exact) * max(0.0, 1 - 2 * reading.dirt) / (1 + 0.5 * extra))
    return float(np.mean(scores))


def motion_of(frames: Sequence[Image.Image], motion: Motion) -> float:
    """Return how far the middle of all that is drawn goes in the direction of a motion, in [0, 1]; 0.5 is nowhere."""
    (move,) = motion.moves
    first, last = _middle(frames[0]), _middle(frames[-1])
    if first is None or last is None:
        return 0.0
    way = float((last - first) @ np.array(DIRECTIONS[move.direction]))
    return 0.5 + 0.5 * float(np.clip(way / FULL_WAY, -1, 1))


def _middle(frame: Image.Image) -> NDArray[np.float64] | None:
    """Return the mean place (x, y) of the pixels that are no background, in [0, 1]; None of an empty frame."""
    pixels = np.asarray(frame.convert("RGB"), np.float64)
    drawn = np.linalg.norm(pixels - np.array(BACKGROUND), axis=-1) > 60
    if not drawn.any():
        return None
    rows, columns = np.nonzero(drawn)
    return np.array([columns.mean() / frame.width, rows.mean() / frame.height])


class MotionAxes(Reward):
    """The mean of `match` and `motion` of a clip, in [0, 1], and both of them as further scores."""

    name = "motion_axes"
    needs = ("video", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one clip.

        Raises:
            InvalidAnswer: a single frame does not move.
        """
        frames = moving_frames(item)
        motion = Motion.from_dict(item.references["answer"])
        match, moved = match_of(frames, motion), motion_of(frames, motion)
        return {self.name: (match + moved) / 2, f"{self.name}_match": match, f"{self.name}_motion": moved}


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    kind, _, part = split.rpartition("-")
    if kind == "motions-one":
        return tuple(_prompts(part))
    return tuple(_pairs(part))


def samples(split: str) -> list[Sample]:
    """Return a set as data, always the same.

    Raises:
        KeyError: there is no such set.
    """
    if split not in NAMES:
        raise KeyError(f"there are no judged motions {split!r}: choose one of {', '.join(NAMES)}")
    return list(_samples(split))


def single_motion(rng: np.random.Generator) -> Motion:
    """Return a motion of one thing."""
    while len((motion := sample_motion(rng, SEEN_KINDS)).moves) > 1:
        pass
    return motion


def _prompts(part: str) -> list[Sample]:
    seed, size = PROMPTS[part]
    rng = np.random.default_rng(seed)
    motions = [single_motion(rng) for _ in range(size)]
    return [
        Sample(f"motions-one-{part}-{number:04d}", prompt=str(motion), answer=motion.as_dict(), task="text-to-video")
        for number, motion in enumerate(motions)
    ]


def _pairs(part: str) -> list[Sample]:
    seed, size = PAIRS[part]
    rng = np.random.default_rng(seed)
    found: list[Sample] = []
    while len(found) < size:
        motion = single_motion(rng)
        clips = [draw_clip(sample_clip(_near(motion, rng), rng)) for _ in range(2)]
        scores = np.array([[judge(clip, motion) for judge in (match_of, motion_of)] for clip in clips])
        gaps = scores[0] - scores[1]
        if (np.abs(gaps) < LEAST).all():
            continue
        better = int(gaps.sum() < 0)
        sides = np.where(np.abs(gaps) < LEAST, 0, np.sign(gaps) * (1 - 2 * better))
        words = {1: "chosen", -1: "rejected", 0: "equal"}
        found.append(
            Sample(
                id=f"motion-pairs-{part}-{len(found):04d}",
                prompt=str(motion),
                chosen=[picture_uri(frame) for frame in clips[better]],
                rejected=[picture_uri(frame) for frame in clips[1 - better]],
                metadata={"axes": {axis: words[int(side)] for axis, side in zip(AXES, sides, strict=True)}},
            )
        )
    return found


def _near(motion: Motion, rng: np.random.Generator) -> Motion:
    """Return a motion whose thing is another with a chance of a half, and its direction too."""
    (move,) = motion.moves
    if rng.random() < 0.5:
        colour, shape = SEEN_KINDS[int(rng.integers(len(SEEN_KINDS)))]
        move = replace(move, colour=colour, shape=shape)
    if rng.random() < 0.5:
        move = replace(move, direction=str(rng.choice(list(DIRECTIONS))))
    return Motion((move,))
