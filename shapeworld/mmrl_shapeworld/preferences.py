"""Data sets of preferences: pairs of pictures for a caption, the better of which the rule checker names.

`preferences-train`, `-development`, `-validation` and `-ood` (captions of unseen compositions); in
`preferences-flipped`, which is `-train`, three of ten labels are wrong. `raters-train`, `-development` and
`-validation` are pairs of equally right pictures, and the judgements of people with one of two tastes: one likes large
things, the other small ones. No rater is in two of these sets.
`factors-train`, `-development` and `-validation` are pairs of any pictures for a caption, in no order, with three
factors of each: `match`, the checker's score; `size`, the share of the picture that its things cover; `centre`, minus
their mean distance from the picture's centre. `axes-train` and `axes-development` are the same pairs with an order on
two axes in `metadata.axes`: `size`, and `height`, how far up the things are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl_shapeworld.captions import HELDOUT_KINDS, KINDS, SEEN_KINDS, Caption, sample_caption, sample_scene
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.negatives import edited
from mmrl_shapeworld.scenes import BACKGROUND, Scene, Thing, draw, picture_uri

SIZES = {"train": 2048, "development": 512, "validation": 512, "ood": 512}
"""Pairs of each set."""
WRONG = 0.3
"""The share of wrong labels in `preferences-flipped`."""
LEAST = 0.15
"""The least difference of the checker's scores in a pair."""
RATERS = {"train": 96, "development": 32, "validation": 64}
"""Raters of each set."""
PAIRS_OF_A_RATER = 24
FACTORS = {"train": 1024, "development": 512, "validation": 512}
"""Pairs of each set."""
NAMES = (
    *(f"preferences-{part}" for part in SIZES),
    "preferences-flipped",
    *(f"raters-{part}" for part in RATERS),
    *(f"factors-{part}" for part in FACTORS),
    "axes-train",
    "axes-development",
)
SMALL = 0.01
"""The difference on an axis below which two pictures are equal."""
_SEED = 91


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    kind, _, part = split.partition("-")
    if kind == "raters":
        return tuple(_rated(part))
    if kind == "factors":
        return tuple(_with_factors(part))
    if kind == "axes":
        return tuple(_with_axes(each) for each in _samples(f"factors-{part}"))
    if part == "flipped":
        rng = np.random.default_rng((_SEED, len(SIZES)))
        return tuple(_flipped(each) if rng.random() < WRONG else each for each in _samples("preferences-train"))
    return tuple(_judged(part))


def samples(split: str) -> list[Sample]:
    """Return a set as data, always the same.

    Raises:
        KeyError: there is no such set.
    """
    if split not in NAMES:
        raise KeyError(f"there are no preferences {split!r}: choose one of {', '.join(NAMES)}")
    return list(_samples(split))


def _judged(part: str) -> list[Sample]:
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    kinds = KINDS if part == "ood" else SEEN_KINDS
    found: list[Sample] = []
    while len(found) < SIZES[part]:
        caption = sample_caption(rng, kinds)
        named = {(clause.colour, clause.shape) for clause in caption.clauses}
        if part == "ood" and not named & set(HELDOUT_KINDS):
            continue
        pictures = [draw(_near(caption, rng)) for _ in range(2)]
        scores = [judge(picture, caption).score for picture in pictures]
        if abs(scores[0] - scores[1]) < LEAST:
            continue
        better = int(scores[1] > scores[0])
        found.append(
            Sample(
                id=f"preferences-{part}-{len(found):04d}",
                prompt=str(caption),
                chosen=picture_uri(pictures[better]),
                rejected=picture_uri(pictures[1 - better]),
                source=caption.form,
                metadata={"margin": round(abs(scores[0] - scores[1]), 4)},
            )
        )
    return found


def _near(caption: Caption, rng: np.random.Generator) -> Scene:
    """Return a scene of the caption with no, one or two things changed."""
    scene = sample_scene(caption, rng)
    for _ in range(int(rng.integers(3))):
        scene = edited(scene, rng) if scene.things else scene
    return scene


def _flipped(sample: Sample) -> Sample:
    return replace(sample, chosen=sample.rejected, rejected=sample.chosen)


def _rated(part: str) -> list[Sample]:
    rng = np.random.default_rng((_SEED, 10 + list(RATERS).index(part)))
    kinds = SEEN_KINDS
    found: list[Sample] = []
    for rater in range(RATERS[part]):
        likes_large = bool(rng.integers(2))
        for _ in range(PAIRS_OF_A_RATER):
            kind = kinds[int(rng.integers(len(kinds)))]
            small, large = (
                picture_uri(
                    draw(
                        Scene((Thing(*kind, float(rng.uniform(0.4, 0.6)), float(rng.uniform(0.4, 0.6)), float(side)),))
                    )
                )
                for side in (rng.uniform(0.22, 0.36), rng.uniform(0.44, 0.62))
            )
            found.append(
                Sample(
                    id=f"raters-{part}-{len(found):05d}",
                    prompt=f"a {kind[0]} {kind[1]}",
                    chosen=large if likes_large else small,
                    rejected=small if likes_large else large,
                    rater=f"{part}-{rater:03d}",
                    source="likes-large" if likes_large else "likes-small",
                )
            )
    return found


def _with_factors(part: str) -> list[Sample]:
    rng = np.random.default_rng((_SEED, 20 + list(FACTORS).index(part)))
    kinds = SEEN_KINDS
    found: list[Sample] = []
    while len(found) < FACTORS[part]:
        caption = sample_caption(rng, kinds)
        scenes = [_near(caption, rng) for _ in range(2)]
        pictures = [draw(scene) for scene in scenes]
        factors = {
            "match": [round(judge(picture, caption).score, 4) for picture in pictures],
            "size": [round(sum(thing.side**2 for thing in scene.things), 4) for scene in scenes],
            "centre": [round(_centred(scene), 4) for scene in scenes],
        }
        found.append(
            Sample(
                id=f"factors-{part}-{len(found):04d}",
                prompt=str(caption),
                chosen=picture_uri(pictures[0]),
                rejected=picture_uri(pictures[1]),
                source=caption.form,
                metadata={"factors": factors},
            )
        )
    return found


def filled_share(picture: Image.Image) -> float:
    """Return the share of the pixels that are no background."""
    return float(_filled(picture).mean())


def mean_height(picture: Image.Image) -> float:
    """Return how far up the pixels are that are no background, in [0, 1]: 1 at the top; 0.5 of an empty picture."""
    filled = _filled(picture)
    rows = np.nonzero(filled)[0]
    return 1 - float(rows.mean() + 0.5) / len(filled) if len(rows) else 0.5


def _filled(picture: Image.Image) -> NDArray[np.bool_]:
    pixels = np.asarray(picture.convert("RGB"), np.float64)
    found: NDArray[np.bool_] = np.linalg.norm(pixels - np.array(BACKGROUND), axis=-1) > 60
    return found


def _with_axes(sample: Sample) -> Sample:
    sides = [load_image(each, sample.id) for each in (sample.chosen, sample.rejected)]
    axes = {}
    for name, measure in (("size", filled_share), ("height", mean_height)):
        gap = measure(sides[0]) - measure(sides[1])
        axes[name] = "equal" if abs(gap) < SMALL else "chosen" if gap > 0 else "rejected"
    return replace(sample, id=f"axes-{sample.id}", metadata={"axes": axes})


def _centred(scene: Scene) -> float:
    distances = [float(np.hypot(thing.x - 0.5, thing.y - 0.5)) for thing in scene.things]
    return -sum(distances) / max(1, len(distances))
