"""Complex-wavelet structural similarity (CW-SSIM), of pictures and of what the text of an answer draws.

Local phases carry structure, and a small shift, turn or scaling changes all phases of a place alike, so that CW-SSIM
hardly sees it (Wang and Simoncelli, 2005; Sampat et al., doi:10.1109/TIP.2009.2025923).
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mmrl.components import load_reference
from mmrl.rewards.core.cache import Unhashable, digest_of_source
from mmrl.rewards.core.image_input import pixels
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form

if TYPE_CHECKING:
    from torch import Tensor

K = 0.03
"""The constant that decides where nothing is to be seen, for values from 0 to 255."""
WINDOW = 7
"""Pixels of a window's side."""
GREY = (0.299, 0.587, 0.114)


class RenderedSimilarity(Reward):
    """CW-SSIM of the pictures that the answer and the true text draw, in [0, 1]; 1 for equal pictures alone.

    `renderer` names a function that draws a text, such as a table in LaTeX, as `package.module:function` or
    `my_renderer.py:function`; it returns a PIL image, and raises `InvalidAnswer` for a text that cannot be drawn. A
    picture of another size is scaled to that of the truth. `references["answer"]` is the true text. The renderer runs
    on what a policy writes: one that calls TeX must forbid it to run commands and to open files, and end it in time.
    """

    name, needs, range = "rendered_cw_ssim", ("text", "references.answer"), (0.0, 1.0)
    source = "Table2LaTeX-RL; Sampat et al., Complex wavelet structural similarity, 2009"

    def __init__(self, renderer: str, levels: int = 4, orientations: int = 8) -> None:
        """
        Args:
            renderer: the function that draws a text.
            levels: octaves of the wavelets, the finest first.
            orientations: directions of the wavelets in each octave.
        """
        if levels < 1 or orientations < 2:
            raise RewardError(f"{self.name}: levels {levels} and orientations {orientations}; at least 1 and 2")
        self.levels, self.orientations = levels, orientations
        self._draw: Callable[[str], Any] = load_reference(renderer, RewardError, f"{self.name}: the renderer")
        self._true = lru_cache(maxsize=256)(self._drawn)
        self._compared = lru_cache(maxsize=1024)(self._compare)  # answers to a prompt are often the same

    def fingerprint(self) -> str:
        """Return the digest of this reward and of the file that defines the renderer."""
        drawing = self._draw if inspect.isroutine(self._draw) else type(self._draw)
        try:
            source = digest_of_source(drawing)
        except Unhashable as err:
            raise RewardError(f"{self.name} cannot be cached: {err}") from err
        return hashlib.sha256((super().fingerprint() + source).encode()).hexdigest()

    def score_one(self, item: RewardInput) -> float:
        truth = item.references["answer"]
        try:
            self._true(truth if isinstance(truth, str) else "")
        except InvalidAnswer as err:
            raise ScoringFailed(f"references['answer'] cannot be drawn: {err}", "reference") from err
        read = answer_text(item.text or "", resolve_form(item))
        return 1.0 if read == truth else self._compared(read, truth)

    def _compare(self, text: str, truth: str) -> float:
        import torch

        image, true = self._drawn(text), self._true(truth)
        if image.size == true.size and image.tobytes() == true.tobytes():
            return 1.0
        if image.size != true.size:
            image = image.resize(true.size, Image.Resampling.BICUBIC)
        with torch.no_grad():
            value = cw_ssim(_grey(image), _grey(true), self.levels, self.orientations)
        return clamp_below_one(min(1.0, max(0.0, value.item())))

    def _drawn(self, text: str) -> Image.Image:
        image = self._draw(text)
        if not isinstance(image, Image.Image) or min(image.size) < WINDOW:
            raise InvalidAnswer(f"the text is drawn as {image!r:.60}, no picture of {WINDOW} pixels a side or more")
        return image.convert("RGB")


def cw_ssim(
    x: Tensor,  # [B, H, W] float in [0, 255], sides of at least WINDOW
    y: Tensor,  # [B, H, W]
    levels: int = 4,
    orientations: int = 8,
) -> Tensor:  # [B] in [0, 1]
    """Return the mean similarity over wavelets and window positions."""
    return similarity(complex_bands(x, levels, orientations), complex_bands(y, levels, orientations)).mean((1, 2, 3))


def similarity(
    x: Tensor,  # [B, N, H, W] complex coefficients of N wavelets
    y: Tensor,  # [B, N, H, W]
    window: int = WINDOW,
    constant: float = K,
) -> Tensor:  # [B, N, H - window + 1, W - window + 1]
    """(2 |sum of x y*| + K) / (sum of |x|^2 + sum of |y|^2 + K) in each window: 1 if y is x times one phase."""
    shared, power = x * y.conj(), x.abs().square() + y.abs().square()
    both = (_sums(shared.real, window).square() + _sums(shared.imag, window).square()).sqrt()
    return (2 * both + constant) / (_sums(power, window) + constant)


def complex_bands(x: Tensor, levels: int, orientations: int) -> Tensor:  # [B, H, W] -> [B, N, H, W] complex
    """Return the coefficients of each octave and orientation of a complex steerable pyramid, all at full size.

    In the frequency domain a band is cos(pi/2 log2(r / r_l)) within an octave around r_l = pi / 2^l, l from 1, times
    cos(angle - pi k / K)^(K - 1) on one half-plane, so that coefficients have phases. The borders wrap.
    """
    import torch

    filters = _filters(x.shape[-2], x.shape[-1], levels, orientations).to(x)
    bands: Tensor = torch.fft.ifft2(torch.fft.fft2(x)[:, None] * filters)
    return bands


@lru_cache(maxsize=8)  # pictures of a run are mostly of one size
def _filters(height: int, width: int, levels: int, orientations: int) -> Tensor:  # [N, H, W] float64
    import torch

    fy, fx = (2 * math.pi * torch.fft.fftfreq(size, dtype=torch.float64) for size in (height, width))
    radius = (fy[:, None].square() + fx[None].square()).sqrt()
    angle = torch.atan2(fy[:, None].expand_as(radius), fx[None].expand_as(radius))
    octave = torch.log2(radius.clamp(min=1e-12) / math.pi)
    found = []
    for level in range(1, levels + 1):
        ring = torch.cos(math.pi / 2 * (octave + level).clamp(-1, 1)).where(radius > 0, 0.0)
        for number in range(orientations):
            towards = torch.cos(angle - math.pi * number / orientations)
            found.append(ring * towards.clamp(min=0) ** (orientations - 1))
    return torch.stack(found)


def _sums(x: Tensor, window: int) -> Tensor:
    """Return the sums over all windows that lie inside."""
    from torch.nn.functional import avg_pool2d

    return avg_pool2d(x, window, stride=1, divisor_override=1)


def _grey(image: Image.Image) -> Tensor:
    """Return [1, H, W] float32 in [0, 255]."""
    from torch import from_numpy

    return from_numpy((255 * (pixels(image) @ np.array(GREY))).astype(np.float32)[None])
