"""The shipped generator of image tokens with a decoder that shows half of the detail, which training can mend.

    policy: {kind: image_tokens, model: shapeworld, architecture: "mmrl_shapeworld.coarse_codec:CoarseShapes"}

Pictures are encoded by the shipped table of patches, so that the generator's codes mean what they meant. What is drawn
of a code is its patch with the colours of each square of 2×2 pixels averaged, so edges are blurred and jagged: the loss
of a codec with too few codes. The neighbours of a patch tell a convolutional decoder where its edges were.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from mmrl.generation.image_tokens.codecs import PATCHES, ImageCodec, PatchCodec
from mmrl.generation.image_tokens.vq_causal_lm import VQCausalLM

SQUARE = 2
"""The side of the squares, in pixels, whose colours are averaged."""


class CoarsePatches(PatchCodec):
    """A table of patches that shows each one with half of its detail."""

    def drawn_patches(self, patches: Tensor) -> Tensor:
        means = F.avg_pool2d(patches.float(), SQUARE).round()
        return F.interpolate(means, scale_factor=SQUARE, mode="nearest").to(torch.uint8)


class CoarseShapes(VQCausalLM):
    """The shipped generator with such a table."""

    @classmethod
    def codec_of(cls, folder: Path, device: torch.device) -> ImageCodec:
        codec = CoarsePatches(load_file(folder / PATCHES)["patches"].to(device))
        codec.load_decoder(folder)
        return codec
