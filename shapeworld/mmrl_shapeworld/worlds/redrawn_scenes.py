"""Scenes that a vision-language model describes, and a painter draws again from the description.

`shapeworld:described-train`, `-development`, `-validation`, `-unseen`, `-later`, `-last` and `-apart` ask for a caption
of a picture, 56×56 pixels. The demonstrations of training are those of a terse annotator: right, mostly, about what
they name, and without most of what tells the scene from others: sizes, relations, second things.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
from PIL import Image
from scipy import ndimage

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.models.reconstruction import Reconstruction
from mmrl_shapeworld.captions import (
    NUMBERS,
    RELATIONS,
    SEEN_KINDS,
    Caption,
    Clause,
    related,
    sample_scene,
)
from mmrl_shapeworld.checker import read
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, SHAPES, Scene, Thing, draw, picture_uri
from mmrl_shapeworld.vqa.canvas import PIXELS

SPLITS = {
    "described-train": 1200,
    "described-development": 256,
    "described-validation": 512,
    "described-unseen": 512,
    "described-later": 384,
    "described-last": 384,
    "described-apart": 512,
}
"""Scenes of each split. Settings are chosen on development; those after it are for results."""
NAMES = tuple(SPLITS)
REQUEST = "Describe."
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_COUNTS = {word: number for number, word in NUMBERS.items()}
_CLAUSE = re.compile(
    rf"({'|'.join(_COUNTS)}) (?:(small|large) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})s?", re.IGNORECASE
)
_JOINT = re.compile(rf" (and|{'|'.join(RELATIONS)}) ")


@cache
def samples(split: str) -> list[Sample]:
    """Return a split: `answer` is the true caption, `metadata.things` the scene, `metadata.picture` its picture.

    Raises:
        KeyError: there is no such split.
    """
    size = SPLITS[split]
    rng = np.random.default_rng((97, NAMES.index(split)))
    earlier = {sample.images for name in NAMES[: NAMES.index(split)] for sample in samples(name)}
    found: list[Sample] = []
    while len(found) < size:
        sample = _described(f"{split}-{len(found):04d}", rng, split.endswith("-train"))
        if sample.images not in earlier:
            found.append(sample)
    return found


def scene_caption(rng: np.random.Generator) -> Caption:
    """Return a caption that names all that tells a scene: a size, a number, or a relation."""
    first, second = (SEEN_KINDS[number] for number in rng.permutation(len(SEEN_KINDS))[:2])
    form = int(rng.integers(3))
    if form == 0:
        return Caption((Clause(1, first[0], first[1], ("small", "large")[int(rng.integers(2))]),))
    if form == 1:
        return Caption((Clause(int(rng.integers(2, 5)), *first),))
    return Caption((Clause(1, *first), Clause(1, *second)), str(rng.choice(RELATIONS)))


def terse_caption(caption: Caption, rng: np.random.Generator) -> Caption:
    """Return what the terse annotator writes: a third of sizes and relations, and half of the numbers."""
    first = caption.clauses[0]
    draw_of = rng.random()
    if caption.relation:
        if draw_of < 0.3:
            return Caption((caption.clauses[int(rng.integers(2))],))
        return caption if draw_of > 0.67 else Caption(caption.clauses)
    if first.count > 1:
        count = first.count if draw_of < 0.5 else int(rng.integers(2, 5))
        return Caption((Clause(count, first.colour, first.shape),))
    return caption if draw_of < 0.33 else Caption((Clause(1, first.colour, first.shape),))


class SceneReconstruction(Reconstruction):
    """Similarity of a scene and its reconstruction, in [-1, 1]: the cosine of the tiny CLIP that ships, and things.

    `things` is the share of the intersection over the union of the things of both, by colour and shape, which captions
    can tell; it is reported as `redrawn_iou`. `redrawn_clip` is the cosine, `redrawn_pixels` the intersection over the
    union of the pixels of things of one colour, which only places can bring to 1.
    """

    name = "scene_reconstruction"
    licence = "Apache-2.0"

    def __init__(self, painter: str | None = None, draws: int = 1, things: float = 0.0, device: str = "auto") -> None:
        """`painter`, `draws`: as of `reconstruction`; `things` in [0, 1]; `device`: "auto" is a GPU if there is one."""
        from mmrl_shapeworld.shipped_models import CLIP

        super().__init__(painter, model=str(CLIP), reference="picture", draws=draws, device=device)
        self._things = things

    def measures(self, original: Image.Image, picture: Image.Image) -> Mapping[str, float]:
        """Return both intersections over unions."""
        return {"redrawn_iou": things_iou(original, picture), "redrawn_pixels": pixels_iou(original, picture)}

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Mix the similarities of what is drawn of all texts, and of all pictures."""
        return [self._mixed(each) for each in super().score_rows(items, context)]

    def _mixed(self, scored: Scored) -> Scored:
        if not isinstance(scored, Mapping):
            return scored
        cosine = scored[self.name]
        mixed = (1 - self._things) * cosine + self._things * scored["redrawn_iou"]
        return {**scored, self.name: mixed, "redrawn_clip": cosine}


class TrueAttributes(Reward):
    """The number of true attributes that a caption names, from 0 up: colours, shapes, sizes, numbers and a relation.

    `false_attributes` is the number of false ones. A clause stands for the kind of thing of the scene with which it
    shares most; a number counts above one, a size where the scene's caption has one, a relation where both its things
    are right. What is no clause ("a small red circle") names nothing.
    """

    name, needs, range = "true_attributes", ("text", "references.answer", "references.things"), (0.0, 8.0)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Read one caption."""
        truth = Caption.from_dict(item.references["answer"])
        scene = Scene(tuple(Thing(**each) for each in item.references["things"]))
        true, false = named_attributes(item.text or "", truth, scene)
        return {self.name: float(true), "false_attributes": float(false)}


def named_attributes(text: str, truth: Caption, scene: Scene) -> tuple[int, int]:
    """Return the numbers of true and of false attributes that a caption of a scene names.

    >>> red = Thing("red", "circle", 0.3, 0.5, 0.3)
    >>> named_attributes("a small red square", Caption((Clause(1, "red", "circle", "small"),)), Scene((red,)))
    (2, 1)
    """
    pieces = _JOINT.split(text.strip().lower())
    clauses = [_clause(piece) for piece in pieces[::2]]
    free = list(truth.clauses)
    true = false = 0
    meant: list[Clause | None] = []
    for clause in clauses:
        match = max(free, key=lambda each: _agreement(clause, each)[0], default=None) if clause else None
        if clause is None or match is None:
            false += 0 if clause is None else len(_stated(clause))
            meant.append(None)
            continue
        free.remove(match)
        right, stated = _agreement(clause, match)
        true, false = true + right, false + stated - right
        meant.append(match if (clause.colour, clause.shape) == (match.colour, match.shape) else None)
    for place, joint in enumerate(pieces[1::2]):
        if joint == "and":
            continue
        holds = _holds(joint, meant[place], meant[place + 1], scene)
        true, false = true + holds, false + (not holds)
    return true, false


def things_iou(first: Image.Image, second: Image.Image) -> float:
    """Return the intersection over the union of the things of two pictures, by colour and shape; 0 for no things."""
    counts = [_kinds(picture.convert("RGB").tobytes(), picture.size) for picture in (first, second)]
    every = (counts[0] | counts[1]).total()
    return (counts[0] & counts[1]).total() / every if every else 0.0


@lru_cache(maxsize=2048)
def _kinds(pixels: bytes, size: tuple[int, int]) -> Counter[tuple[str, str | None]]:
    """Return how often a picture has things of each colour and shape; a group of captions shares its original."""
    return Counter((thing.colour, thing.shape) for thing in read(Image.frombytes("RGB", size, pixels)).things)


def pixels_iou(first: Image.Image, second: Image.Image) -> float:
    """Return the share of the pixels that are of a thing in either picture which have one colour in both."""
    labels = [_labels(image, second.size) for image in (first, second)]
    either = (labels[0] > 0) | (labels[1] > 0)
    return float(((labels[0] == labels[1]) & either).sum() / max(1, either.sum()))


def _labels(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Return [H, W], the number of the nearest colour of each pixel; 0 is the background."""
    rgb = np.asarray(image.convert("RGB"), np.float32)
    palette = np.array([BACKGROUND, *COLOURS.values()], np.float32)
    label = np.linalg.norm(rgb[:, :, None] - palette, axis=-1).argmin(-1)
    scale = (size[1] / label.shape[0], size[0] / label.shape[1])
    return label if scale == (1.0, 1.0) else ndimage.zoom(label, scale, order=0)


def _clause(text: str) -> Clause | None:
    found = _CLAUSE.fullmatch(text)
    return None if found is None else Clause(_COUNTS[found[1]], found[3], found[4], found[2])


def _stated(clause: Clause) -> dict[str, object]:
    stated: dict[str, object] = {"colour": clause.colour, "shape": clause.shape}
    stated |= {"number": clause.count} if clause.count > 1 else {}
    return stated | ({"size": clause.size} if clause.size else {})


def _agreement(clause: Clause, truth: Clause) -> tuple[int, int]:
    """Return the attributes of a clause that are those of a true one, and all that it states."""
    stated = _stated(clause)
    known = {"colour": truth.colour, "shape": truth.shape, "number": truth.count, "size": truth.size}
    return sum(known[key] == value for key, value in stated.items()), len(stated)


def _holds(relation: str, first: Clause | None, second: Clause | None, scene: Scene) -> bool:
    if first is None or second is None or first is second:
        return False
    places = {(thing.colour, thing.shape): thing for thing in scene.things}
    one, other = places.get((first.colour, first.shape)), places.get((second.colour, second.shape))
    return one is not None and other is not None and related(one, other, relation)


def _described(id: str, rng: np.random.Generator, taught: bool) -> Sample:
    caption = scene_caption(rng)
    scene = sample_scene(caption, rng)
    terse = terse_caption(caption, rng)
    picture = picture_uri(draw(scene, PIXELS))
    return Sample(
        id=id,
        prompt=REQUEST,
        images=(picture,),
        answer=caption.as_dict(),
        source=caption.form,
        demonstration=str(terse) if taught else None,
        metadata={"picture": picture_uri(draw(scene)), "things": [vars(thing) for thing in scene.things]},
    )
