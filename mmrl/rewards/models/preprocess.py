"""A network's preprocessing as tensor operations, so that gradients reach the picture."""

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
_RESAMPLINGS = {2: "bilinear", 3: "bicubic"}  # PIL's numbers for them


@dataclass(frozen=True)
class Framing:
    """How pictures are brought to the size and scale that a network was trained on.

    The steps are PIL's, which resizes with the same antialiased filters. What is left between them is that PIL rounds
    to 256 levels, twice: at most 1.1 levels in a pixel, 0.3 on average, and less than 0.01 in a cosine.
    """

    height: int
    width: int
    fit: Fit
    """crop: the short side to `edge`, then the middle. squash: each side by itself. pad: the long side, then black."""
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    edge: int = 0
    resampling: str = "bicubic"
    odd_margin: Literal["down", "even"] = "even"
    """Where a crop begins if the margin is odd: transformers rounds down, torchvision to even."""

    def __call__(self, images: Tensor) -> Tensor:  # [B, 3, H, W] in [0, 1] -> [B, 3, height, width]
        """The framed pictures, normalised."""
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
        """Height and width of a picture before it is cropped or padded."""
        if self.fit == "squash":
            return self.height, self.width
        if self.fit == "pad":
            scale = min(self.height / height, self.width / width)
            return round(height * scale), round(width * scale)
        longer = int(self.edge * max(height, width) / min(height, width))
        return (self.edge, longer) if height <= width else (longer, self.edge)

    def _margin(self, free: int) -> int:
        """The part of a margin, negative where a picture is cropped, that comes first."""
        if free >= 0:
            return free // 2
        return -(-free // 2 if self.odd_margin == "down" else round(-free / 2))


def framing_of_processor(processor: Any) -> Framing:
    """The framing that a transformers image processor stands for.

    Raises:
        RewardError: it does something that a `Framing` does not.
    """
    size = _plain(processor.size)
    crop = _plain(processor.crop_size) if getattr(processor, "do_center_crop", False) else None
    resampling = _RESAMPLINGS.get(int(processor.resample))
    steps = processor.do_resize and processor.do_rescale and processor.do_normalize
    if not steps or resampling is None or abs(processor.rescale_factor - 1 / 255) > 1e-9:
        raise RewardError("its image processor skips a step or resizes with another filter than bilinear and bicubic")
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    if set(size) == {"height", "width"} and crop in (None, size):
        return Framing(size["height"], size["width"], "squash", mean, std, 0, resampling, "down")
    if set(size) == {"shortest_edge"} and crop and max(crop.values()) <= size["shortest_edge"]:
        return Framing(crop["height"], crop["width"], "crop", mean, std, size["shortest_edge"], resampling, "down")
    raise RewardError(f"its image processor has size {size} and crop_size {crop}")


def framing_of_open_clip(settings: Mapping[str, Any]) -> Framing:
    """The framing that open_clip's `preprocess_cfg` stands for.

    Raises:
        RewardError: it does something that a `Framing` does not.
    """
    size = settings["size"]
    height, width = (size, size) if isinstance(size, int) else size
    fits: dict[str, Fit] = {"shortest": "crop", "longest": "pad", "squash": "squash"}
    fit = fits[settings["resize_mode"]]
    if (height != width and fit != "squash") or settings["interpolation"] not in _RESAMPLINGS.values():
        raise RewardError(f"its preprocessing is {dict(settings)}")
    if fit == "pad" and settings["fill_color"] != 0:
        raise RewardError(f"it pads with the colour {settings['fill_color']}, not with black")
    mean, std = tuple(settings["mean"]), tuple(settings["std"])
    return Framing(height, width, fit, mean, std, height, settings["interpolation"])


def _plain(size: Any) -> dict[str, int]:
    """What is set of a processor's size."""
    return {key: int(value) for key, value in dict(size).items() if value is not None}


# Prompts that are longer than a text encoder reads.


LONGEST_PROMPT = 2_000
"""Characters that are tokenized. Text encoders read 35 to 77 tokens; open_clip's tokenizer is Python, and takes seconds
for what is far longer."""

_log = logging.getLogger(__name__)


class PromptCutter:
    """Cuts prompts as the model's own tokenizer does, and says so once."""

    def __init__(self, reward: str, tokens: int) -> None:
        """`tokens`: how many the text encoder reads, the special ones included."""
        self.reward, self.tokens = reward, tokens
        self._said = False

    def cut(self, prompts: Sequence[str]) -> list[str]:
        """The prompts, none longer than `LONGEST_PROMPT`."""
        self.note(sum(len(prompt) > LONGEST_PROMPT for prompt in prompts))
        return [prompt[:LONGEST_PROMPT] for prompt in prompts]

    def note(self, too_long: int) -> None:
        """Say, once, that prompts were cut."""
        if too_long and not self._said:
            self._said = True
            _log.warning(
                "%s reads %d tokens of a prompt; the rest of longer ones is not looked at. Said once.",
                self.reward,
                self.tokens,
            )
