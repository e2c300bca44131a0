"""Distances between answers: among those to one prompt (diversity), and from the base model's at equal seeds (drift).

Three measures. `pairwise_distance` and `differing_pairs` are exact and made for evaluations. `Distances` adds an image
encoder where one is available. `group_diversity` is the cheap gauge that is logged in every training iteration; it
falls when a policy collapses to one answer, which no reward shows.
"""

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
from mmrl.statistics.intervals import Floats

PIXELS = "root-mean-square difference of pixels in [0, 1]; it also counts a shifted copy as different"
TEXTS = "share of pairs of answers that differ; to the base: edit distance over the longer answer's length"
SIDE = 16
"""Pixels a side at which `group_diversity` compares pictures: cheap, and blind to noise."""


class Embedder(Protocol):
    """An image encoder whose cosine measures how alike two pictures are."""

    @property
    def name(self) -> str:
        """The encoder's name in results."""

    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """Return [B, D]: a unit vector of each picture."""


@dataclass(frozen=True)
class Distances:
    """A measure of diversity and drift: 1 - cosine in [0, 2] with an `embed`, else by pixels; texts by letters."""

    embed: Embedder | None = None

    def description(self, texts: bool) -> str:
        """Return the measure in words, for pictures or for texts."""
        if texts:
            return TEXTS
        return PIXELS if self.embed is None else f"1 - cosine of the pictures in {self.embed.name}"

    def diversity(self, groups: Sequence[Sequence[Any]]) -> Floats:
        """Return [N]: the mean distance between the answers of each group; NaN where an answer is missing."""
        return _measured(groups, self._within)

    def drift(self, before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> Floats:
        """Return [N]: the mean distance between the answers of two models, draw by draw."""
        pairs = [list(zip(one, other, strict=True)) for one, other in zip(before, after, strict=True)]
        flat = [[answer for pair in group for answer in pair] for group in pairs]
        return _measured(flat, self._between)

    def _within(self, group: Sequence[Any]) -> float:
        if self.embed is None or isinstance(group[0], str):
            return answer_diversity(group)
        points = self.embed(group)
        return float(np.mean([1 - float(one @ other) for one, other in combinations(points, 2)]))

    def _between(self, pairs: Sequence[Any]) -> float:
        """Return the mean distance of answers in pairs, laid end to end."""
        halves = list(zip(pairs[::2], pairs[1::2], strict=True))
        if isinstance(pairs[0], str):
            from rapidfuzz.distance import Levenshtein

            return float(np.mean([Levenshtein.normalized_distance(one, other) for one, other in halves]))
        if self.embed is None:
            return float(np.mean([pairwise_distance(pair) for pair in halves]))
        points = self.embed(pairs)
        return float(np.mean([1 - float(one @ other) for one, other in zip(points[::2], points[1::2], strict=True)]))


def answer_diversity(answers: Sequence[Any]) -> float:
    """Return `differing_pairs` of texts, `pairwise_distance` of pictures.

    Raises:
        EvaluationError: fewer than two answers, or pictures of different sizes.
    """
    return differing_pairs(answers) if isinstance(answers[0], str) else pairwise_distance(answers)


def comparable(answers: Sequence[Any]) -> bool:
    """Return True if the answers are all texts, or all pictures of one size; False for none, or where one is None."""
    if not answers or any(answer is None for answer in answers):
        return False
    texts = [isinstance(answer, str) for answer in answers]
    return all(texts) or (not any(texts) and len({answer.size for answer in answers}) == 1)


def pairwise_distance(images: Sequence[Image.Image]) -> float:
    """Return the mean over pairs of the root-mean-square difference of RGB values in [0, 1].

    It is 0 for copies and 1 for black and white. A distance of pixels: it falls when a policy collapses, but also
    counts a shifted copy as different.

    Raises:
        EvaluationError: fewer than two pictures, or pictures of different sizes.
    """
    if len(images) < 2:
        raise EvaluationError(f"diversity needs two or more pictures of a prompt, not {len(images)}")
    if len(sizes := {image.size for image in images}) > 1:
        raise EvaluationError(f"the pictures of one prompt differ in size: {sorted(sizes)}")
    pixels = [np.asarray(image.convert("RGB"), np.float32) / 255 for image in images]
    return float(np.mean([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(pixels, 2)]))


def differing_pairs(texts: Sequence[str]) -> float:
    """Return the share of pairs of texts that differ, in [0, 1]: 0 for copies, 1 where no text occurs twice.

    With m_k copies of the k-th text among n: 1 - sum m_k (m_k - 1) / (n (n - 1)), Simpson's index without replacement.

    Raises:
        EvaluationError: fewer than two texts.
    """
    if len(texts) < 2:
        raise EvaluationError(f"diversity needs two or more answers to a prompt, not {len(texts)}")
    copies = sum(count * (count - 1) for count in Counter(texts).values())
    return 1 - copies / (len(texts) * (len(texts) - 1))


def group_diversity(
    media: Sequence[Any],  # R pictures (PIL), videos (lists of PIL) or texts
    groups: Sequence[int],  # R, the prompt of each answer
) -> float | None:
    """Return the mean diversity of the groups, in [0, 1]; None where no group has two answers of one kind.

    Texts: the share of distinct ones. Pictures and the middle frames of videos: the root mean square over pairs of the
    difference of RGB values, at 16 x 16 pixels.
    """
    by_group: dict[int, list[Any]] = {}
    for answer, group in zip(media, groups, strict=True):
        by_group.setdefault(group, []).append(answer)
    found = [value for answers in by_group.values() if (value := _coarse_diversity(answers)) is not None]
    return float(np.mean(found)) if found else None


def _coarse_diversity(answers: Sequence[Any]) -> float | None:
    if len(answers) < 2:
        return None
    if all(isinstance(answer, str) for answer in answers):
        return len(set(answers)) / len(answers)
    known = [picture for answer in answers if (picture := _small(answer)) is not None]
    if len(known) < len(answers):
        return None
    pixels = np.stack(known)
    # The mean over ordered pairs of |a - b|^2 is twice the variance with ddof 1.
    return float(np.sqrt(2 * pixels.var(axis=0, ddof=1, dtype=np.float64).mean()))


def thumbnail(media: Any) -> Image.Image | None:
    """Return a picture, or the middle frame of a video, at 16 x 16 pixels; None for anything else.

    `group_diversity` of thumbnails is that of the pictures.
    """
    if isinstance(media, Sequence) and media and isinstance(media[0], Image.Image):
        media = media[len(media) // 2]
    if not isinstance(media, Image.Image):
        return None
    return media.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)


def _small(media: Any) -> NDArray[np.float32] | None:
    """Return [768] in [0, 1]; None for anything but a picture or a list of them."""
    small = thumbnail(media)
    return None if small is None else np.asarray(small, np.float32).ravel() / np.float32(255)


def _measured(groups: Sequence[Sequence[Any]], measure: Callable[[Sequence[Any]], float]) -> Floats:
    """Return the measure of each group; NaN, not an error, where its answers are not comparable."""
    return np.array([measure(group) if comparable(group) else np.nan for group in groups], np.float64)
