"""What a family of autoregressive generators must say of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor


@dataclass(frozen=True)
class TokenPrompt:
    """What is read before the first code of a picture, as ids of text tokens."""

    cond: tuple[int, ...]
    """With what the sample asks for."""
    uncond: tuple[int, ...]
    """Without it: what guidance leads away from. It need not be as long."""


class ImageTokenModel(Protocol):
    """A model that writes the codes of a picture, row by row, after a prompt.

    A code is a number in [0, codes), whatever token stands for it in the model's vocabulary: tokens that are no codes
    are not allowed inside a picture, and have no probability.
    """

    network: Any  # the transformers model that is trained, whole
    grid: tuple[int, int]  # rows and columns of codes
    codes: int  # V, how many there are
    forced_tokens: Mapping[
        int, tuple[int, ...]
    ]  # after so many codes, text tokens that are not chosen but always follow

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """How this family is asked. `negative` takes the place of the empty prompt.

        Raises:
            ConfigError: the family knows no negative prompt.
        """
        ...

    def embed_text(self, ids: Tensor) -> Tensor:
        """[B, L] ids of text tokens to [B, L, H]."""
        ...

    def embed_codes(self, codes: Tensor) -> Tensor:
        """[B, K] codes to [B, K, H]."""
        ...

    def body(self, **inputs: Any) -> Any:
        """The language model without a head, on `inputs_embeds`, as transformers calls it."""
        ...

    def code_states(self, states: Tensor) -> Tensor:
        """Of [..., H] last hidden states, what `code_head` is multiplied with: [..., H']."""
        ...

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        """What makes the logits of codes: [V, H'], and [V] what is added, if anything is. It may be a copy, so a loop
        asks for it once."""
        ...

    def is_trainable(self, name: str) -> bool:
        """Whether a parameter of the model takes part in writing codes, and so learns in full training."""
        ...

    def linear_layers(self) -> list[str]:
        """The full names of the linear layers that adapters go to: those of the language model, without heads."""
        ...

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """[B, T] codes to pictures."""
        ...

    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size to [B, T] codes."""
        ...

    def weights(self, folder: Path) -> Path:
        """Where, in a folder of a model of this family, `from_pretrained` finds the trained model."""
        ...

    def save_other_files(self, folder: Path) -> None:
        """Write what a folder needs beside the trained model, so that `policy.model` can name it."""
        ...


# Pictures to the pixels that autoencoders take, and back.


def to_pixels(pictures: Sequence[Image.Image], height: int, width: int) -> Tensor:
    """[B, 3, height, width] float32 in [-1, 1]; a picture of another size is cut to the shape in its middle, and
    resampled."""
    fitted = [_fitted(picture.convert("RGB"), height, width) for picture in pictures]
    stacked = np.stack([np.asarray(picture, np.float32) for picture in fitted])
    return torch.from_numpy(stacked / 127.5 - 1).permute(0, 3, 1, 2).contiguous()


def to_images(pixels: Tensor) -> list[Image.Image]:
    """The inverse of `to_pixels`; what lies outside [-1, 1] is clipped."""
    clipped = (pixels.detach().float().clamp(-1, 1) + 1) * 127.5
    rounded = clipped.round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(picture) for picture in rounded]


def _fitted(picture: Image.Image, height: int, width: int) -> Image.Image:
    if picture.size == (width, height):
        return picture
    scale = min(picture.width / width, picture.height / height)
    across, down = scale * width, scale * height
    left, top = (picture.width - across) / 2, (picture.height - down) / 2
    return picture.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, left + across, top + down))
