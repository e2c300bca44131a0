"""How far answers are from one another: within a sample (diversity), and from the base's at the same seed (drift)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.errors import EvaluationError
from mmrl.statistics.bootstrap import Floats

PIXELS = "root-mean-square difference of pixels in [0, 1]; it also counts a shifted copy as different"
TEXTS = "share of pairs of answers that differ; to the base: edit distance over the longer answer's length"


class Embedder(Protocol):
    """What sees how alike pictures are."""

    @property
    def name(self) -> str:
        """What it is called in results."""
        ...

    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """[B, D]: a unit vector of each picture."""
        ...


@dataclass(frozen=True)
class Distances:
    """By an embedder where one is at hand: 1 - cosine, in [0, 2]. Else by pixels, or of texts by letters."""

    embed: Embedder | None = None

    def told(self, texts: bool) -> str:
        """What is measured, for people."""
        if texts:
            return TEXTS
        return PIXELS if self.embed is None else f"1 - cosine of the pictures in {self.embed.name}"

    def diversity(self, groups: Sequence[Sequence[Any]]) -> Floats:
        """[N]: the mean distance between the answers of each group; NaN where not all answers are there."""
        within = self._within_embedded if self.embed else pairwise_distance
        return _each(groups, lambda group: differing_pairs(group) if isinstance(group[0], str) else within(group))

    def drift(self, before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> Floats:
        """[N]: the mean distance between the answers of two subjects, draw by draw."""
        pairs = [list(zip(one, other, strict=True)) for one, other in zip(before, after, strict=True)]
        flat = [[answer for pair in group for answer in pair] for group in pairs]
        return _each(flat, self._between)

    def _between(self, pairs: Sequence[Any]) -> float:
        """Of answers in pairs, laid end to end."""
        halves = list(zip(pairs[::2], pairs[1::2], strict=True))
        if isinstance(pairs[0], str):
            from rapidfuzz.distance import Levenshtein

            return float(np.mean([Levenshtein.normalized_distance(one, other) for one, other in halves]))
        if self.embed is None:
            return float(np.mean([pairwise_distance(pair) for pair in halves]))
        points = self.embed(pairs)
        return float(np.mean([1 - float(one @ other) for one, other in zip(points[::2], points[1::2], strict=True)]))

    def _within_embedded(self, pictures: Sequence[Image.Image]) -> float:
        assert self.embed is not None
        points = self.embed(pictures)
        return float(np.mean([1 - float(one @ other) for one, other in combinations(points, 2)]))


def _each(groups: Sequence[Sequence[Any]], measure: Callable[[Sequence[Any]], float]) -> Floats:
    """What cannot be compared, as pictures of two sizes, or an answer that is not there, is NaN: counted, no error."""
    return np.array([measure(group) if _comparable(group) else np.nan for group in groups], np.float64)


def _comparable(group: Sequence[Any]) -> bool:
    if not group or any(answer is None for answer in group):
        return False
    texts = [isinstance(answer, str) for answer in group]
    return all(texts) or (not any(texts) and len({answer.size for answer in group}) == 1)


# How different the pictures, or the texts, of one prompt are from one another.


def group_diversity(images_by_group: Sequence[Sequence[Image.Image]]) -> float:
    """Mean over groups of `pairwise_distance`, in [0, 1]. It falls towards 0 as a policy collapses.

    Raises:
        EvaluationError: no group at all, a group of one, or pictures of different sizes in a group.
    """
    if not images_by_group:
        raise EvaluationError("diversity needs at least one group of pictures")
    return float(np.mean([pairwise_distance(images) for images in images_by_group]))


def pairwise_distance(images: Sequence[Image.Image]) -> float:
    """Mean over pairs of the root-mean-square difference of RGB values in [0, 1]: 0 for copies, 1 for black and white.

    A distance of pixels: it sees a collapse, but also counts a shifted copy as different.
    """
    if len(images) < 2:
        raise EvaluationError(f"diversity needs two or more pictures of a prompt, not {len(images)}")
    if len(sizes := {image.size for image in images}) > 1:
        raise EvaluationError(f"the pictures of one prompt differ in size: {sorted(sizes)}")
    pixels = [np.asarray(image.convert("RGB"), np.float32) / 255 for image in images]
    return float(np.mean([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(pixels, 2)]))


def differing_pairs(texts: Sequence[str]) -> float:
    """The share of pairs of texts that differ, in [0, 1]: 0 for copies, 1 where none is there twice.

    With m_k copies of the k-th text among n: 1 - sum m_k (m_k - 1) / (n (n - 1)), Simpson's index without replacement.

    Raises:
        EvaluationError: fewer than two texts.
    """
    if len(texts) < 2:
        raise EvaluationError(f"diversity needs two or more answers to a prompt, not {len(texts)}")
    copies = sum(count * (count - 1) for count in Counter(texts).values())
    return 1 - copies / (len(texts) * (len(texts) - 1))
