"""Measure how well a scorer separates true captions from near misses, and good pictures from corrupted ones.

A scorer is a function to a matrix of scores, so any scorer can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl_shapeworld.captions import KINDS, Caption, sample_caption, sample_scene
from mmrl_shapeworld.negatives import ATTRIBUTES, every_caption, hard_negatives, true_captions
from mmrl_shapeworld.scenes import Scene, draw
from tools.shapeworld_pretrain.corruptions import FAULTS, break_picture

Scores = NDArray[np.floating]
Score = Callable[[Sequence[Image.Image], Sequence[str]], Scores]
"""[N] pictures and [M] texts to [N, M]."""


def unseen(count: int, seed: int) -> tuple[list[Caption], list[Scene]]:
    """Captions and scenes that they describe."""
    rng = np.random.default_rng(seed)
    chosen = [sample_caption(rng, KINDS) for _ in range(count)]
    return chosen, [sample_scene(caption, rng) for caption in chosen]


def attribute_accuracy(score: Score, captions: list[Caption], scenes: list[Scene]) -> dict[str, float]:
    """For each attribute, the share of pictures whose caption scores above all its hard negatives that are false.

    Pictures whose caption has no such attribute are left out of its share.
    """
    column = {caption: number for number, caption in enumerate(every_caption())}
    scores = score([draw(scene, 32) for scene in scenes], [str(caption) for caption in column])
    tries: dict[str, list[bool]] = {attribute: [] for attribute in ATTRIBUTES}
    for row, caption, scene in zip(scores, captions, scenes, strict=True):
        for attribute, results in tries.items():
            false = [column[other] for other in hard_negatives(caption, attribute) if not other.holds_for(scene)]
            if false:
                results.append(bool(row[column[caption]] > row[false].max()))
    return {attribute: float(np.mean(results)) for attribute, results in tries.items()}


def gallery(size: int, seed: int, tries: int = 60) -> tuple[list[Caption], list[Scene]]:
    """Distinct captions and a scene of each, so that each scene has one true caption among them.

    Raises:
        ValueError: there is no room for this number (about 270 fit).
    """
    rng = np.random.default_rng(seed)
    chosen: list[Caption] = []
    scenes: list[Scene] = []
    for number in rng.permutation(len(every_caption())):
        caption = every_caption()[number]
        if any(caption.holds_for(other) for other in scenes):
            continue
        for _ in range(tries):
            scene = sample_scene(caption, rng)
            oblique = len(true_captions(scene)) > 4  # left of and also above: would leave room for fewer captions
            if not oblique and not any(other.holds_for(scene) for other in chosen):
                chosen.append(caption)
                scenes.append(scene)
                break
        if len(chosen) == size:
            return chosen, scenes
    raise ValueError(f"a gallery of {size} captions, each with a scene that only it is true of: found {len(chosen)}")


def recall_at_1(score: Score, captions: list[Caption], scenes: list[Scene]) -> float:
    """Share of the pictures of a gallery whose own caption scores highest of all captions in it."""
    scores = score([draw(scene, 32) for scene in scenes], [str(caption) for caption in captions])
    return float((scores.argmax(1) == np.arange(len(captions))).mean())


def fault_accuracy(score: Score, captions: list[Caption], scenes: list[Scene], seed: int) -> dict[str, float]:
    """For each fault, how often a broken picture scores below the good one of the same scene."""
    rng = np.random.default_rng(seed)
    texts = [str(caption) for caption in captions]
    good = score([draw(scene, 32) for scene in scenes], texts).diagonal()
    shares = {}
    for fault in FAULTS:
        others = [*scenes[1:], scenes[0]]
        pictures = [break_picture(s, o, fault, rng) for s, o in zip(scenes, others, strict=True)]
        bad = score([Image.fromarray(picture) for picture in pictures], texts).diagonal()
        shares[fault] = float((bad < good).mean())
    return shares
