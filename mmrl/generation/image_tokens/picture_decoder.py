"""The decoder of a policy's image tokens as a model that is trained, and the discriminator that it learns against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.distributed.layout import Layout, Replicas
from mmrl.finetuning.parameter_file import read_parameters, save_parameters
from mmrl.generation.image_tokens.image_token_model import ImageTokenModel, to_pixels

FILE = "model.safetensors"


class TrainedNetwork:
    """A network that a run trains beside the policy, all of its parameters in float32."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.version = network.float().requires_grad_(True), 0
        self.layout: Layout = Replicas()

    def networks(self) -> list[nn.Module]:
        """Return the network."""
        return [self.network]

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return all parameters by their names in the network."""
        return dict(self.network.named_parameters())

    def lr_scale(self, name: str) -> float:
        """Return 1: all parameters learn at the same rate."""
        return 1.0

    def save(self, folder: Path) -> None:
        """Write the parameters by name."""
        save_parameters(self.parameters_to_train(), folder / FILE)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote.

        Raises:
            ConfigError: the file has parameters of other names.
        """
        read_parameters(self.parameters_to_train(), folder / FILE, "network")


class PictureDecoder(TrainedNetwork):
    """The part of a policy's codec that makes pixels; the policy's own pictures are those of this decoder."""

    def __init__(self, image_model: ImageTokenModel) -> None:
        """
        Raises:
            ConfigError: the decoder of this model is not trained here.
        """
        super().__init__(image_model.pixel_decoder())
        self._image_model = image_model

    def decode(self, codes: Tensor) -> Tensor:
        """Return pixels [B, 3, H, W] around [-1, 1] of codes [B, T], with a graph if gradients are enabled."""
        pixels: Tensor = self.network(codes.view(-1, *self._image_model.grid))
        return pixels

    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        """Return the codes [B, T] of images of any size."""
        return self._image_model.encode(images)

    def pixels(self, images: Sequence[Image.Image], like: Tensor) -> Tensor:
        """Return images as [B, 3, H, W] in [-1, 1], cropped and resampled to the size of `like` [..., H, W]."""
        return to_pixels(images, *like.shape[-2:]).to(like)

    def last_layer(self) -> nn.Parameter:
        """Return the weights of the last convolution, by which gradients of losses are compared."""
        last: Any = self.network.last
        layer: nn.Parameter = last.weight
        return layer


class PictureDiscriminator(TrainedNetwork):
    """A PatchGAN (arXiv:1611.07004): each output says of a part of the picture whether it is a true one.

    Three layers of stride 2 and two of stride 1, as VQGAN's. Differs: GroupNorm in the place of batch normalisation,
    whose running means would be a state beside the parameters.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        """`width` is the number of filters of the first layer; it doubles with each of the next three."""
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for number in range(3):
            inner = width * 2**number
            layers += [nn.Conv2d(inner, 2 * inner, 4, 2 if number < 2 else 1, 1, bias=False)]
            layers += [nn.GroupNorm(max(1, width // 8), 2 * inner), nn.LeakyReLU(0.2)]
        network = nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 1))
        super().__init__(network.to(device))

    def logits(self, pixels: Tensor) -> Tensor:
        """Return [B, 1, h, w], large where pixels [B, 3, H, W] look true; H and W are at least 32."""
        found: Tensor = self.network(pixels)
        return found
