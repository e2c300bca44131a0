"""The interface of a token image generator: prompts and codes in, hidden states and images out, and its export.

Sampling, scoring, guidance and training are written once for all models (`image_token_policy`). To add a model: derive
from `ImageTokenModel` and register the class in the entry-point group `mmrl.image_token_models`, or name it with
`policy.architecture: path/to/file.py:Name`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.errors import ConfigError


@dataclass(frozen=True)
class TokenPrompt:
    """The text tokens before the first code of an image."""

    cond: tuple[int, ...]
    """The ids with the sample's prompt."""
    uncond: tuple[int, ...]
    """The ids with the empty or negative prompt, for guidance. The two lengths may differ."""


class ImageTokenModel(ABC):
    """A model that generates the codes of an image, row by row, after a prompt.

    A code is a number in [0, codes), independent of the token that represents it in the model's vocabulary. All other
    tokens have probability 0 inside an image.
    """

    library: ClassVar[str | None] = "transformers"
    """The library that loads an exported folder whole, in the Hub's spelling; None: no library does."""
    unified: ClassVar[bool] = False
    """True if the network answers questions about pictures, too: the class is then built from (network, processor)."""
    export_notes: ClassVar[tuple[str, ...]] = ()
    """Sentences for the model card of an exported folder."""

    network: Any
    """The transformers model that is trained, with all its parts."""
    grid: tuple[int, int]
    """The rows and columns of codes."""
    codes: int
    """V, the number of different codes."""
    scales: tuple[tuple[int, int], ...] = ()
    """The rows and columns of each scale, coarsest first, of a model that draws a whole scale at once; the last is
    `grid`. Empty: codes are drawn one by one."""
    forced_tokens: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """The text tokens that always follow after this number of codes; they are read, never sampled. Default: none."""

    @property
    def codes_per_image(self) -> int:
        """T, the number of codes of an image, over all scales."""
        return sum(rows * columns for rows, columns in self.scales or (self.grid,))

    @classmethod
    @abstractmethod
    def from_folder(cls, folder: Path, config: ImageTokenConfig, device: torch.device) -> ImageTokenModel:
        """Load the model from a folder, with weights in `config.dtype` and only from safetensors.

        Raises:
            ConfigError: the folder or `config.size` does not fit the model.
        """

    @abstractmethod
    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """Return the ids of a prompt; `negative` replaces the empty prompt.

        Raises:
            ConfigError: the model supports no negative prompt.
        """

    @abstractmethod
    def embed_codes(self, codes: Tensor) -> Tensor:
        """Return the embeddings [B, K, H] of codes [B, K]."""

    def embed_scale(self, codes: Tensor, scale: int) -> Tensor:
        """Return the inputs [B, n, H] of the n codes of a scale from the codes [B, K] of all scales before it.

        A model with `scales` defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} draws codes one by one")

    @abstractmethod
    def body(self, **inputs: Any) -> Any:
        """Run the language model without its head on `inputs_embeds`, with the arguments and output of transformers."""

    @abstractmethod
    def code_head(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight [V, H'] of the linear layer that computes the logits of codes, and its bias [V] or None.

        The tensors may be copies, so a loop should call this once.
        """

    @abstractmethod
    def is_trainable(self, name: str) -> bool:
        """Return whether full training trains this parameter of `network`: those that generate codes, not images."""

    @abstractmethod
    def linear_layers(self) -> list[str]:
        """Return the full names of the linear layers that adapters go to: the language model's, without heads."""

    @abstractmethod
    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Return the images of codes [B, T]."""

    @abstractmethod
    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        """Return the codes [B, T] of images of any size."""

    @abstractmethod
    def save_other_files(self, folder: Path) -> None:
        """Write the files that make `folder` loadable, apart from the weights of `network`."""

    @abstractmethod
    def snippet(self, request: SnippetRequest) -> str:
        """Return Python code without mmrl that loads an exported folder and generates `image`, a PIL image."""

    def embed_text(self, ids: Tensor) -> Tensor:
        """Return the embeddings [B, L, H] of text tokens [B, L]."""
        embeddings: Tensor = self.network.get_input_embeddings()(ids)
        return embeddings

    def code_states(self, states: Tensor) -> Tensor:
        """Return the input [..., H'] of `code_head` from the last hidden states [..., H]."""
        return states

    def pixel_decoder(self) -> nn.Module:
        """Return the part that makes pixels, to be trained: codes [B, rows, columns] to [B, 3, height, width].

        Pixels are around [-1, 1]; `decode` computes with its parameters, and `last` is its last convolution.

        Raises:
            ConfigError: the decoder of this model is not trained here.
        """
        raise ConfigError(
            f"models: the decoder of {type(self).__name__} is not trained here: take a folder with a codec "
            "(docs/image-tokens.md), or leave the decoder out"
        )

    def decoder_state(self) -> dict[str, Tensor]:
        """Return a copy of the parameters of the part that makes pixels; empty where it never changes."""
        return {}

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Take what `decoder_state` returned."""

    def load_pixel_decoder(self, folder: Path) -> None:  # noqa: B027
        """Take the part that makes pixels from a saved folder; a model whose decoder never changes keeps it."""

    def weights_folder(self, folder: Path) -> Path:
        """Return the sub-folder of the weights of `network` in a model folder."""
        return folder

    def save(self, folder: Path) -> None:
        """Write a folder that `from_folder` loads."""
        self.network.save_pretrained(self.weights_folder(folder))
        self.save_other_files(folder)


def linear_layers_below(network: nn.Module, prefix: str) -> list[str]:
    """Return the full names of the linear layers whose name begins with `prefix`."""
    linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
    return [path for path in linear if path.startswith(prefix)]


def to_pixels(images: Sequence[Image.Image], height: int, width: int) -> Tensor:
    """Return images as [B, 3, height, width] float32 in [-1, 1]; other sizes are centre-cropped and resampled."""
    fitted = [ImageOps.fit(image.convert("RGB"), (width, height)) for image in images]
    stacked = np.stack([np.asarray(image, np.float32) for image in fitted])
    return torch.from_numpy(stacked / 127.5 - 1).permute(0, 3, 1, 2).contiguous()


def to_images(pixels: Tensor) -> list[Image.Image]:
    """Return pixels [B, 3, height, width] as PIL images; values outside [-1, 1] are clipped."""
    clipped = (pixels.detach().float().clamp(-1, 1) + 1) * 127.5
    rounded = clipped.round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(image) for image in rounded]


PIXELS_TO_IMAGE = (
    "image = Image.fromarray(((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().byte().cpu().numpy())"
)
"""The line that makes `image` from `pixels` [height, width, 3] in [-1, 1]."""


@dataclass(frozen=True)
class SnippetRequest:
    """The folder, the prompt and the sampling that a snippet shows."""

    folder: str  # the folder's name or its Hub id
    dtype: str
    prompt: str
    sampling: ImageTokenSamplingConfig

    @property
    def load_arguments(self) -> str:
        """The arguments of `from_pretrained`."""
        return f"{quote(self.folder)}, dtype=torch.{self.dtype}"

    @property
    def generate_arguments(self) -> str:
        """The sampling arguments of `generate`; `top_k=0` because the default of transformers is 50."""
        sampling = self.sampling
        if not sampling.temperature:
            return "do_sample=False"
        return (
            f"do_sample=True, temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k or 0}"
        )

    def empty_prompt_lines(self, template: str) -> list[str]:
        """Return the line that defines `empty` for guidance, if there is any; `template` has {} for its text."""
        if self.sampling.guidance_scale == 1:
            return []
        return ["empty = " + template.format(quote(self.sampling.negative_prompt or ""))]

    def guidance_lines(self, ids: str, mask: str) -> list[str]:
        """Return the guidance arguments of `generate`, one a line, if there is guidance."""
        if self.sampling.guidance_scale == 1:
            return []
        return [
            f"    guidance_scale={self.sampling.guidance_scale},",
            f"    negative_prompt_ids={ids},",
            f"    negative_prompt_attention_mask={mask},",
        ]


def quote(text: str) -> str:
    """Return a text as a Python literal in double quotes. User text enters code through this function only."""
    return json.dumps(text, ensure_ascii=False)
