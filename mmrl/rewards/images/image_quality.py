"""Image quality without a model: freedom from artefacts of reward hacking (grids, oversaturation), and JPEG size."""

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

PERIODS = (2, 4, 8, 16)  # periods in pixels of the grids that patches and the upsampling of a VAE's decoder leave
MIN_REPEATS = 8  # periods of a grid per side, below which it cannot be distinguished from the image's content
TILE_SIDE = 2048
"""The longest side that is analysed in one tile; the contrast of a larger image is the root mean square over tiles."""
PEAK_RADIUS = 8  # radius, in bins, of the neighbourhood that a peak of the spectrum is compared with
PEAK_FACTOR = 5.0  # least ratio of a peak to its neighbourhood: in white noise, one peak in 50,000 exceeds it
GRID_FLOOR, GRID_HALF = 0.5 / 255, 2 / 255
"""Root mean square up to which a grid is ignored (rounding a smooth ramp leaves up to 0.3 / 255), and the excess that
halves the score."""
CLIP_MARGIN, MIN_CHROMA = 1 / 255, 0.25
"""A pixel is oversaturated if a channel is this close to 0 or 1, and its channels differ by at least this much."""
FREE_SHARE, HALF_SHARE = 0.1, 0.2
"""Share of oversaturated pixels in natural images, and the excess that halves the score."""
MAX_JPEG_SIDE = 65_500  # width and height that a JPEG encoder accepts


class Artefacts(Reward):
    """Freedom of an image from grid patterns and oversaturation, in [0, 1]; 1 is clean.

    The product of `artefacts/grid` and `artefacts/saturation`, which are returned too. Grid: 1 / (1 + (a / 2)^2), a the
    root mean square of patterns that repeat every 2, 4, 8 or 16 pixels (see `grid_contrast`), in gray levels beyond the
    first half. Saturation: 1 / (1 + (s / 0.2)^2), s the share of pixels that are coloured and clipped, beyond the first
    tenth; black, gray and white never count. A grid must fit 8 times into each side to be found. Detects reward
    hacking; it does not measure whether an image is good.
    """

    name, needs, range = "artefacts", ("image",), (0.0, 1.0)
    source = "peaks of the spectrum at patch frequencies, share of clipped colours"

    def __init__(self, periods: Sequence[int] = PERIODS) -> None:
        """`periods` of grids in pixels, each at least 2."""
        if not periods or any(not isinstance(period, int) or period < 2 for period in periods):
            raise RewardError(f"artefacts: periods is {periods!r}; it must be numbers of pixels from 2 up")
        self.periods = tuple(periods)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        image = answer_image(item.image)
        power = clipped = 0.0
        for tile in tiles(image.size):
            values = pixels(image.crop(tile))
            share = values.shape[0] * values.shape[1] / (image.width * image.height)
            power += share * grid_contrast(values, self.periods) ** 2
            clipped += share * oversaturated(values)
        grid = _decay(power**0.5 - GRID_FLOOR, GRID_HALF)
        saturation = _decay(clipped - FREE_SHARE, HALF_SHARE)
        return {"artefacts": grid * saturation, "artefacts/grid": grid, "artefacts/saturation": saturation}


def tiles(size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Return the tiles (left, top, right, bottom), of nearly equal size, of an image of this width and height.

    Most images have one tile. A spectrum takes 100 bytes a pixel, 3 GiB for the largest image allowed.
    """
    columns, rows = ([n * side // -(-side // TILE_SIDE) for n in range(-(-side // TILE_SIDE) + 1)] for side in size)
    return [
        (left, top, right, bottom)
        for top, bottom in itertools.pairwise(rows)
        for left, right in itertools.pairwise(columns)
    ]


def grid_contrast(
    values: NDArray[np.float64],  # [H, W, C] in [0, 1]
    periods: Sequence[int] = PERIODS,
) -> float:
    """Return the root mean square of the pattern that repeats with one of these periods, in [0, 1]; 0 if there is none.

    Such a pattern consists of peaks of the spectrum at the multiples of 1 / period. The content of an image is smooth
    there, or a ridge: each peak is lowered by `PEAK_FACTOR` times the highest of four medians around it, along the
    rows, the columns and the diagonals of the spectrum. The result is the maximum over channels and periods. Content
    that repeats with such a period, as lines of text 16 pixels apart, counts as a grid.
    """
    spectra: dict[tuple[int, int], NDArray[np.float32]] = {}
    found = [0.0]
    for period in periods:
        height, width = (size // period * period for size in values.shape[:2])
        if min(height, width) >= MIN_REPEATS * period:  # else its peaks are too close to one another
            if (height, width) not in spectra:
                spectra[height, width] = _spectrum(values[:height, :width])
            found.append(_peaks(spectra[height, width], period))
    return max(found)


def oversaturated(values: NDArray[np.float64]) -> float:
    """Return the share of pixels that are coloured and clipped, of an image [H, W, 3] in [0, 1]."""
    lowest, highest = values.min(2), values.max(2)
    clipped = (lowest <= CLIP_MARGIN) | (highest >= 1 - CLIP_MARGIN)
    return float((clipped & (highest - lowest >= MIN_CHROMA)).mean())


def _spectrum(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return magnitudes [C, H, W], scaled so that their squares sum to the mean square of a periodic pattern."""
    from scipy.fft import fft2

    # A Hann window suppresses the image's borders, and widens each peak to three bins
    rows, columns = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size) for size in values.shape[:2])
    window = np.outer(rows, columns).astype(np.float32)
    channels = np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
    channels -= channels.mean((1, 2), keepdims=True)
    magnitudes: NDArray[np.float32] = np.abs(fft2(channels * window)) / window.sum()
    return magnitudes


def _peaks(spectrum: NDArray[np.float32], period: int) -> float:
    """Return the root of the sum of squares of one period's peaks, lowered by their neighbourhood."""
    height, width = spectrum.shape[1:]
    places = [np.arange(period) * (size // period) for size in (height, width)]
    rows, columns = (grid.ravel()[1:, None] for grid in np.meshgrid(*places, indexing="ij"))  # all but the mean
    steps = np.arange(2, min(PEAK_RADIUS, min(height, width) // period - 2) + 1)
    steps = np.concatenate([-steps, steps])
    around = [
        np.median(spectrum[:, (rows + down * steps) % height, (columns + across * steps) % width], axis=-1)
        for down, across in ((0, 1), (1, 0), (1, 1), (1, -1))
    ]
    peaks = spectrum[:, rows[:, 0], columns[:, 0]]
    power = np.maximum(peaks**2 - (PEAK_FACTOR * np.max(around, axis=0)) ** 2, 0).sum(-1)
    return float(np.sqrt(power.max()))


def _decay(excess: float, half: float) -> float:
    """Return 1 at and below 0, one half at `half`, and towards 0 beyond."""
    return clamp_below_one(1 / (1 + (excess / half) ** 2)) if excess > 0 else 1.0


class Compressibility(Reward):
    """The negative size of the image as a JPEG, in kB (1000 bytes): smooth images score near 0.

    DDPO's first reward (kvablack/ddpo-pytorch ddpo_pytorch/rewards.py, JPEG quality 95). Use a negative weight for its
    opposite, incompressibility. It has no lowest value, so an invalid image is not scored.
    """

    name, needs, range = "compressibility", ("image",), (-float("inf"), 0.0)
    source = "DDPO, arXiv:2305.13301"

    def __init__(self, quality: int = 95) -> None:
        if not 1 <= quality <= 95:
            raise RewardError(f"compressibility: quality is {quality}; JPEG takes 1 to 95")
        self.quality = quality

    def score_one(self, item: RewardInput) -> float:
        image = answer_image(item.image)
        if max(image.size) > MAX_JPEG_SIDE:
            raise InvalidAnswer(
                f"the image has {image.width} x {image.height} pixels; JPEG takes {MAX_JPEG_SIDE} a side"
            )
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=self.quality)
        return -buffer.tell() / 1000
