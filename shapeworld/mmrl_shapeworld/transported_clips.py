"""Clips that show the thing of their prompt in some of their frames, and CLIP's cosine after optimal transport.

The tiny CLIP knows captions of pictures. In prompts of clips ("a red circle moves left") it reads words that it was
never taught, so that their vectors lie off those of the clips: what `transported_clip` is to mend.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from PIL import Image

from mmrl.rewards import RewardInput
from mmrl.rewards.models.transported_clip import TransportedCLIP
from mmrl.studies.scoring import LabelledAnswers
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.motion import DIRECTIONS, FRAMES, Motion, Move, draw_clip, sample_clip
from mmrl_shapeworld.shipped_models import CLIP

REAL, COUNT = 384, 240


class ShapeTransportedCLIP(TransportedCLIP):
    """`transported_clip` by the tiny CLIP that ships, with drawn clips as the real ones."""

    name = "shape_transported_clip"

    def __init__(self, share: float = 1.0, ridge: float = 0.1, device: str = "auto") -> None:
        """The arguments are those of `transported_clip`."""
        super().__init__(real_clips(), str(CLIP), share, ridge, device=device)


@cache
def real_clips() -> tuple[tuple[str, tuple[Image.Image, ...]], ...]:
    """Return prompts of one thing that moves, with a clip of each; none of them is scored anywhere."""
    rng = np.random.default_rng(181)
    motions = [_motion(rng) for _ in range(REAL)]
    return tuple((str(motion), tuple(draw_clip(sample_clip(motion, rng)))) for motion in motions)


def flickering_clips(seed: int) -> LabelledAnswers:
    """Return clips in which the thing of the prompt is there in a share of the frames, the truth, in 0, 1/5, ..., 1.

    In the other frames something else moves in its place.
    """
    rng = np.random.default_rng((seed, 13))
    inputs, truth = [], []
    for number in range(COUNT):
        motion = _motion(rng)
        right, wrong = (draw_clip(sample_clip(each, rng)) for each in (motion, _other(motion, rng)))
        kept = number % (FRAMES + 1)
        is_right = rng.permutation(FRAMES) < kept
        frames = [(right if own else wrong)[place] for place, own in enumerate(is_right)]
        inputs.append(RewardInput(id=f"{seed}-{number}", group=0, prompt=str(motion), video=frames))
        truth.append(kept / FRAMES)
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.array(truth))


def _motion(rng: np.random.Generator) -> Motion:
    colour, shape = KINDS[rng.integers(len(KINDS))]
    return Motion((Move(colour, shape, str(rng.choice(list(DIRECTIONS)))),))


def _other(motion: Motion, rng: np.random.Generator) -> Motion:
    """Return the motion of a thing that differs in its colour, its shape, or both."""
    (move,) = motion.moves
    others = [kind for kind in KINDS if kind != (move.colour, move.shape)]
    colour, shape = others[rng.integers(len(others))]
    return Motion((replace(move, colour=colour, shape=shape),))
