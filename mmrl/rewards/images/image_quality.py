"""Grids and oversaturation: what generators fall into when they please a reward instead of drawing."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.image_input import answer_image, pixels
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one

PERIODS = (2, 4, 8, 16)
"""Pixels: what patches and the steps of a VAE's decoder leave behind."""
REPEATS = 8
"""How often a grid must fit into each side of a picture to be told from what the picture shows."""
TILE = 2048
"""The longest side that is looked at in one piece; the contrast of a larger picture is the root mean square of its
parts'."""
REACH = 8
"""How far from a peak, in bins, the spectrum around it is looked at."""
CHANCE = 5.0
"""Peaks lower than this times what is around them are no peaks: of white noise, one in 50,000 is."""
QUIET, HALVING = 0.5 / 255, 2 / 255
"""Root mean square of a grid that is none yet (rounding a smooth ramp leaves up to 0.3), and how much more halves the
score."""
CLIPPED, COLOURED = 1 / 255, 0.25
"""A pixel is oversaturated if a channel is this near to 0 or 1 and its channels differ by at least so much."""
FREE, HALF = 0.1, 0.2
"""Share of oversaturated pixels that natural pictures have, and how much more halves the score."""


class Artefacts(Reward):
    """How free a picture is of grid patterns and oversaturation, in [0, 1]; 1 is clean.

    The product of `artefacts/grid` and `artefacts/saturation`, which are given beside it. Grid: the root mean
    square a of what repeats every 2, 4, 8 or 16 pixels (see `grid_contrast`), as 1 / (1 + (a / 2)^2) with a in grey
    levels beyond the first half. Saturation: the share s of pixels that are coloured and clipped, as
    1 / (1 + (s / 0.2)^2) with s beyond the first tenth; black, grey and white never count. A grid must fit 8 times into
    each side to be found. A watchdog against reward hacking, made here; it says nothing about whether a picture is
    good.
    """

    name, needs, range = "artefacts", ("image",), (0.0, 1.0)
    source = "peaks of the spectrum at patch frequencies, share of clipped colours"

    def __init__(self, periods: Sequence[int] = PERIODS) -> None:
        """`periods` in pixels, each at least 2, at which grids are looked for."""
        if not periods or any(not isinstance(period, int) or period < 2 for period in periods):
            raise RewardError(f"artefacts: periods is {periods!r}; numbers of pixels from 2 up are due")
        self.periods = tuple(periods)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Look for both."""
        picture = answer_image(item.image)
        power = clipped = 0.0
        for part in tiles(picture.size):
            values = pixels(picture.crop(part))
            share = values.shape[0] * values.shape[1] / (picture.width * picture.height)
            power += share * grid_contrast(values, self.periods) ** 2
            clipped += share * oversaturated(values)
        grid = _falling(power**0.5 - QUIET, HALVING)
        saturation = _falling(clipped - FREE, HALF)
        return {"artefacts": grid * saturation, "artefacts/grid": grid, "artefacts/saturation": saturation}


def tiles(size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """The parts (left, top, right, bottom) that a picture of this width and height is looked at in, of nearly one size.

    Most pictures are one part. A spectrum takes 100 bytes a pixel, 3 GiB for the largest picture there may be.
    """
    columns, rows = ([n * side // -(-side // TILE) for n in range(-(-side // TILE) + 1)] for side in size)
    return [
        (left, top, right, bottom)
        for top, bottom in itertools.pairwise(rows)
        for left, right in itertools.pairwise(columns)
    ]


def grid_contrast(
    values: NDArray[np.float64],  # [H, W, C] in [0, 1]
    periods: Sequence[int] = PERIODS,
) -> float:
    """Root mean square of the pattern that repeats with one of these periods, in [0, 1]; 0 if there is none.

    Such a pattern is nothing but peaks of the spectrum at the multiples of 1 / period. What a picture shows is smooth
    there, or a ridge that runs on: each peak is lowered by `CHANCE` times the highest of four medians around it, along
    the rows, the columns and the diagonals of the spectrum. The result is that of the channel and the period where it
    is largest. Things that do repeat so, as lines of text 16 pixels apart, are a grid as well.
    """
    spectra: dict[tuple[int, int], NDArray[np.float32]] = {}
    found = [0.0]
    for period in periods:
        height, width = (size // period * period for size in values.shape[:2])
        if min(height, width) >= REPEATS * period:  # else its peaks lie too near to one another
            if (height, width) not in spectra:
                spectra[height, width] = _spectrum(values[:height, :width])
            found.append(_peaks(spectra[height, width], period))
    return max(found)


def oversaturated(values: NDArray[np.float64]) -> float:
    """The share of an [H, W, 3] picture's pixels in [0, 1] that are coloured and clipped."""
    lowest, highest = values.min(2), values.max(2)
    clipped = (lowest <= CLIPPED) | (highest >= 1 - CLIPPED)
    return float((clipped & (highest - lowest >= COLOURED)).mean())


def _spectrum(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """[C, H, W]; magnitudes, so scaled that their squares add up to the mean square of a periodic pattern."""
    from scipy.fft import fft2

    # A Hann window keeps the picture's borders out, and widens each peak to three bins
    rows, columns = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size) for size in values.shape[:2])
    window = np.outer(rows, columns).astype(np.float32)
    channels = np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
    channels -= channels.mean((1, 2), keepdims=True)
    magnitudes: NDArray[np.float32] = np.abs(fft2(channels * window)) / window.sum()
    return magnitudes


def _peaks(spectrum: NDArray[np.float32], period: int) -> float:
    """Root of the sum of squares of the peaks of one period, lowered by what is around them."""
    height, width = spectrum.shape[1:]
    places = [np.arange(period) * (size // period) for size in (height, width)]
    rows, columns = (grid.ravel()[1:, None] for grid in np.meshgrid(*places, indexing="ij"))  # all but the mean
    steps = np.arange(2, min(REACH, min(height, width) // period - 2) + 1)
    steps = np.concatenate([-steps, steps])
    around = [
        np.median(spectrum[:, (rows + down * steps) % height, (columns + across * steps) % width], axis=-1)
        for down, across in ((0, 1), (1, 0), (1, 1), (1, -1))
    ]
    peaks = spectrum[:, rows[:, 0], columns[:, 0]]
    power = np.maximum(peaks**2 - (CHANCE * np.max(around, axis=0)) ** 2, 0).sum(-1)
    return float(np.sqrt(power.max()))


def _falling(excess: float, half: float) -> float:
    """1 at and below 0, one half at `half`, towards 0 beyond."""
    return clamp_below_one(1 / (1 + (excess / half) ** 2)) if excess > 0 else 1.0


# How well a picture compresses: a reward that needs no model, for trying out a run.


LONGEST = 65_500
"""Pixels a side of what a JPEG encoder takes."""


class Compressibility(Reward):
    """The negative size of the picture as a JPEG, in kB (1000 bytes): smooth pictures score near 0.

    DDPO's first reward (kvablack/ddpo-pytorch ddpo_pytorch/rewards.py, JPEG quality 95). Use a negative weight for its
    opposite, incompressibility. It has no lowest value, so a picture that cannot be used is not scored at all.
    """

    name, needs, range = "compressibility", ("image",), (-float("inf"), 0.0)
    source = "DDPO, arXiv:2305.13301"

    def __init__(self, quality: int = 95) -> None:
        if not 1 <= quality <= 95:
            raise RewardError(f"compressibility: quality is {quality}; JPEG takes 1 to 95")
        self.quality = quality

    def score_one(self, item: RewardInput) -> float:
        """Compress the picture."""
        picture = answer_image(item.image)
        if max(picture.size) > LONGEST:
            raise InvalidAnswer(
                f"the picture has {picture.width} x {picture.height} pixels; JPEG takes {LONGEST} a side"
            )
        buffer = io.BytesIO()
        picture.save(buffer, format="JPEG", quality=self.quality)
        return -buffer.tell() / 1000
