"""Preprocessing of images as tensor operations, so that gradients reach the image, and truncation of long prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mmrl.rewards.core.reward_errors import RewardError

if TYPE_CHECKING:
    from torch import Tensor

Fit = Literal["crop", "squash", "pad"]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_RESAMPLINGS = {2: "bilinear", 3: "bicubic"}  # by PIL's enumeration
MAX_PROMPT_LENGTH = 2_000
"""Characters that are tokenized. Text encoders take 35 to 77 tokens; open_clip's tokenizer is written in Python, and
takes seconds for much longer texts."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorPreprocess:
    """Resizing, cropping or padding, and normalisation of images to a network's input.

    The steps are those of PIL, with the same antialiased filters. The only difference is that PIL rounds to 256 levels,
    twice: at most 1.1 levels in a pixel, 0.3 on average, and less than 0.01 in a cosine.
    """

    height: int
    width: int
    fit: Fit
    """crop: resize the short side to `edge`, then crop the centre. squash: resize each side. pad: resize the long side,
    then pad with black."""
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    edge: int = 0
    resampling: str = "bicubic"
    odd_margin: Literal["down", "even"] = "even"
    """Rounding of half an odd margin to the start of a crop: transformers rounds down, torchvision to even."""

    def __call__(self, images: Tensor) -> Tensor:  # [B, 3, H, W] in [0, 1] -> [B, 3, height, width]
        """Return the preprocessed images."""
        from torch.nn import functional

        size = self.resized(*images.shape[-2:])
        for step in ((images.shape[-2], size[1]), size):  # as PIL: widths, then heights, clipped after each
            images = functional.interpolate(images, step, mode=self.resampling, antialias=True).clamp(0, 1)
        top, left = self._margin(self.height - size[0]), self._margin(self.width - size[1])
        bottom, right = self.height - size[0] - top, self.width - size[1] - left
        images = functional.pad(images, (left, right, top, bottom))  # a negative margin crops
        mean, std = images.new_tensor(self.mean), images.new_tensor(self.std)
        return (images - mean[:, None, None]) / std[:, None, None]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing, before cropping or padding."""
        if self.fit == "squash":
            return self.height, self.width
        if self.fit == "pad":
            scale = min(self.height / height, self.width / width)
            return round(height * scale), round(width * scale)
        longer = int(self.edge * max(height, width) / min(height, width))
        return (self.edge, longer) if height <= width else (longer, self.edge)

    def _margin(self, free: int) -> int:
        """Return the first part of a margin, which is negative for a crop."""
        if free >= 0:
            return free // 2
        return -(-free // 2 if self.odd_margin == "down" else round(-free / 2))


def preprocess_of_processor(processor: Any) -> TensorPreprocess:
    """Return the tensor form of a transformers image processor.

    Raises:
        RewardError: it has a step that `TensorPreprocess` does not support.
    """
    size = _plain(processor.size)
    crop = _plain(processor.crop_size) if getattr(processor, "do_center_crop", False) else None
    resampling = _RESAMPLINGS.get(int(processor.resample))
    steps = processor.do_resize and processor.do_rescale and processor.do_normalize
    if not steps or resampling is None or abs(processor.rescale_factor - 1 / 255) > 1e-9:
        raise RewardError("its image processor skips a step or resizes with another filter than bilinear and bicubic")
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    if set(size) == {"height", "width"} and crop in (None, size):
        return TensorPreprocess(size["height"], size["width"], "squash", mean, std, 0, resampling, "down")
    if set(size) == {"shortest_edge"} and crop and max(crop.values()) <= size["shortest_edge"]:
        return TensorPreprocess(
            crop["height"], crop["width"], "crop", mean, std, size["shortest_edge"], resampling, "down"
        )
    raise RewardError(f"its image processor has size {size} and crop_size {crop}")


def preprocess_of_open_clip(settings: Mapping[str, Any]) -> TensorPreprocess:
    """Return the tensor form of open_clip's `preprocess_cfg`.

    Raises:
        RewardError: it has a step that `TensorPreprocess` does not support.
    """
    size = settings["size"]
    height, width = (size, size) if isinstance(size, int) else size
    fits: dict[str, Fit] = {"shortest": "crop", "longest": "pad", "squash": "squash"}
    fit = fits[settings["resize_mode"]]
    if (height != width and fit != "squash") or settings["interpolation"] not in _RESAMPLINGS.values():
        raise RewardError(f"its preprocessing is {dict(settings)}")
    if fit == "pad" and settings["fill_color"] != 0:
        raise RewardError(f"it pads with the colour {settings['fill_color']}; only black is supported")
    mean, std = tuple(settings["mean"]), tuple(settings["std"])
    return TensorPreprocess(height, width, fit, mean, std, height, settings["interpolation"])


def _plain(size: Any) -> dict[str, int]:
    """Return the fields of a processor's size that are set."""
    return {key: int(value) for key, value in dict(size).items() if value is not None}


class PromptTruncator:
    """A limit on the length of prompts, with one warning when prompts are truncated."""

    def __init__(self, reward: str, tokens: int) -> None:
        """`tokens`: the limit of the text encoder, special tokens included."""
        self.reward, self.tokens = reward, tokens
        self._warned = False

    def truncate(self, prompts: Sequence[str]) -> list[str]:
        """Return the prompts, truncated to `MAX_PROMPT_LENGTH` characters."""
        self.warn_truncated(sum(len(prompt) > MAX_PROMPT_LENGTH for prompt in prompts))
        return [prompt[:MAX_PROMPT_LENGTH] for prompt in prompts]

    def tokenize(self, tokenizer: Any, prompts: Sequence[str]) -> Any:
        """Return the tokens of the prompts by a tokenizer of transformers, each row padded or truncated to `tokens`."""
        prompts = self.truncate(prompts)
        complete = tokenizer(prompts, truncation=False, verbose=False)["input_ids"]
        self.warn_truncated(sum(len(row) > self.tokens for row in complete))
        return tokenizer(prompts, padding="max_length", truncation=True, max_length=self.tokens, return_tensors="pt")

    def warn_truncated(self, too_long: int) -> None:
        """Log one warning if the number of truncated prompts is above 0."""
        if too_long and not self._warned:
            self._warned = True
            message = "%s reads %d tokens of a prompt; longer prompts are truncated. Logged once."
            _log.warning(message, self.reward, self.tokens)
