"""Demonstrations of a task of three steps as sequences of pictures, for the study of perceptual rewards.

A blue square stands alone, a red circle is put somewhere, and the circle is replaced by a green triangle. All shake
from frame to frame, and so do one or two other things, which stand in every frame of one episode and are others in the
next.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from PIL import Image
from scipy.stats import spearmanr

from mmrl.rewards.learned.demonstrated_steps import learn_steps, step_progress
from mmrl.rewards.models.clip_encoder import Encoder, load_encoder
from mmrl.statistics.intervals import Floats
from mmrl_shapeworld.captions import Kind
from mmrl_shapeworld.scenes import Scene, draw, place
from mmrl_shapeworld.shipped_models import CLIP

STEPS: tuple[tuple[Kind, ...], ...] = (
    (("blue", "square"),),
    (("blue", "square"), ("red", "circle")),
    (("blue", "square"), ("green", "triangle")),
)
OTHERS: tuple[Kind, ...] = (("yellow", "square"), ("yellow", "triangle"), ("yellow", "circle"), ("green", "circle"))
DEMONSTRATIONS, TESTED, FRAMES = 4, 12, 12
SHAKE = 0.015
"""The standard deviation of each thing's place from frame to frame, as a share of the picture's side."""


def episode(rng: np.random.Generator) -> tuple[list[Image.Image], Floats]:
    """Return the frames of an episode, and the step of each: 0, 1 or 2; every step takes at least two frames."""
    cuts = np.sort(rng.choice(np.arange(2, FRAMES - 1, 2), 2, replace=False))
    steps = np.searchsorted(cuts, np.arange(FRAMES), side="right")
    count = int(rng.integers(1, 3))
    clutter = [(*OTHERS[n], float(rng.uniform(0.2, 0.35))) for n in rng.choice(len(OTHERS), count, replace=False)]
    while (scene := place([("blue", "square", 0.25), ("red", "circle", 0.25), *clutter], rng)) is None:
        pass
    first, second, *rest = scene.things
    frames = []
    for step in steps:
        things = [first, *rest]
        if step:
            colour, shape = STEPS[step][1]
            things.append(replace(second, colour=colour, shape=shape))
        shifted = (replace(each, x=each.x + rng.normal(0, SHAKE), y=each.y + rng.normal(0, SHAKE)) for each in things)
        frames.append(draw(Scene(tuple(shifted))))
    return frames, steps.astype(np.float64)


def progress_correlation(seed: int, features: int | None) -> dict[str, list[float]]:
    """Return how well a reward from a few demonstrations follows the steps of other episodes.

    Args:
        features: the most discriminative features that are kept for each step; None for all 960.

    Returns:
        `correlation`: Spearman's, of the reward and the step, over the frames of all other episodes.
    """
    rng = np.random.default_rng((seed, 37))
    demonstrations = [_features(episode(rng)[0]) for _ in range(DEMONSTRATIONS)]
    steps = learn_steps(demonstrations, len(STEPS), features)
    others = [episode(rng) for _ in range(TESTED)]
    scores = [step_progress(torch.from_numpy(_features(frames)), steps).numpy() for frames, _ in others]
    truth = np.concatenate([each for _, each in others])
    return {"correlation": [float(spearmanr(np.concatenate(scores), truth).statistic)]}


def _features(frames: list[Image.Image]) -> Floats:
    encoder = _encoder()
    with torch.inference_mode():
        return np.asarray(encoder.layer_features(encoder.pixels(frames)).double().numpy())


@cache
def _encoder() -> Encoder:
    return load_encoder("demonstrated_steps", str(CLIP))
