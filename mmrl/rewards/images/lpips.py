"""LPIPS: how different two pictures look to a network that was trained to tell things apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.spec import WeightFile
from mmrl.rewards.images.similarity import AgainstReference
from mmrl.rewards.models.model_files import Found, find_file, load_tensors, torch_device

if TYPE_CHECKING:
    from torch import Tensor

Net = Literal["alex", "vgg"]
KINDS = ("weight", "bias")
HIGHEST = 10.0
"""No distance is above twice the sum of each layer's largest linear weight: 8.05 (AlexNet) and 6.63 (VGG)."""
LEAST = 2.0**-24
"""The distance of pictures that differ by less than float32 can tell."""


@dataclass(frozen=True)
class Layout:
    """A network as LPIPS cuts it: after each part the features are compared."""

    parts: tuple[tuple[int, ...], ...]  # the convolutions of each part, by torchvision's numbers
    pool: int  # side of the pooling before each part but the first; its stride is 2
    smallest: int  # pixels a side for which each part has an output
    weights: str  # torchvision's name of its weights
    files: tuple[str, ...]  # what the network's weights are called in a folder
    strides: Mapping[int, int]  # where not 1
    paddings: Mapping[int, int]  # where not 1


LAYOUTS: dict[Net, Layout] = {
    "alex": Layout(
        parts=((0,), (3,), (6,), (8,), (10,)),
        pool=3,
        smallest=31,
        weights="AlexNet_Weights",
        files=("lpips_alex.safetensors", "alexnet.safetensors", "alexnet-owt-7be5be79.pth"),
        strides={0: 4},
        paddings={0: 2, 3: 2},
    ),
    "vgg": Layout(
        parts=((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28)),
        pool=2,
        smallest=16,
        weights="VGG16_Weights",
        files=("lpips_vgg.safetensors", "vgg16.safetensors", "vgg16-397923af.pth"),
        strides={},
        paddings={},
    ),
}


class LPIPS(AgainstReference):
    """Learned perceptual distance to `references["image"]`, from 0 (the very same picture) up; lower is better.

    Zhang et al. 2018, version 0.1 with linear weights (richzhang/PerceptualSimilarity lpips/lpips.py): features of
    AlexNet or VGG16 scaled to unit length at every place, their squared differences weighted by channel, averaged over
    places, added over five layers. Smaller pictures than 31 (AlexNet) or 16 (VGG) pixels a side are a failure of the
    scorer.
    """

    name, range, direction = "lpips", (0.0, HIGHEST), "lower"
    source = "LPIPS, arXiv:1801.03924"
    licence = "BSD-2-Clause (linear weights), BSD-3-Clause (torchvision's networks)"

    def __init__(
        self,
        net: Net = "alex",
        network: str = "torchvision",
        linear: str | None = "torchmetrics",
        resize: bool = False,
        device: str = "auto",
    ) -> None:
        """
        Args:
            net: "alex", the authors' choice for judging, or "vgg", theirs for optimising.
            network: torchvision's weights of that network, or those of a whole LPIPS: a file, or a folder or hub
                repository that has lpips_alex.safetensors, alexnet.safetensors or alexnet-owt-7be5be79.pth (or
                lpips_vgg.safetensors, vgg16.safetensors, vgg16-397923af.pth); "torchvision" fetches its own.
            linear: LPIPS' linear weights: a file, or a folder or hub repository that has alex.safetensors or alex.pth
                (or vgg); "torchmetrics" takes the official ones that come with that package; None: `network` is a
                whole LPIPS.
            resize: the answer to the size of its reference.
            device: "auto" is CUDA where there is any.
        """
        super().__init__(resize)
        self.network = LPIPSNetwork(net, network, linear, device)
        self.smallest = self.network.layout.smallest

    def weight_files(self) -> tuple[WeightFile, ...]:
        """The one or two files that it was built from."""
        return self.network.weight_files()

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        """[B]; of pictures [B, 3, H, W] in [0, 1]."""
        from torch import cat

        both = self.network.features(cat([images, references.to(images)]))
        return sum_of_squares([layer[: len(images)] - layer[len(images) :] for layer in both]).to(images)

    def rounded(self, value: float, same: bool) -> float:
        """0 for the same picture alone."""
        return 0.0 if same else min(max(value, LEAST), HIGHEST)


class LPIPSNetwork:
    """The network, in float32: pictures become features whose squared differences add up to LPIPS."""

    def __init__(self, net: Net, network: str, linear: str | None, device: str = "auto") -> None:
        """
        Raises:
            RewardError: a file cannot be found or fetched, or holds other weights.
        """
        if net not in get_args(Net):
            raise RewardError(f"lpips: net is {net!r}; {' or '.join(get_args(Net))} is due")
        self.layout = LAYOUTS[net]
        if network == "torchvision":
            self._files = [_torchvision_file(self.layout)]
        else:
            self._files = [find_file(network, self.layout.files)]
        held = load_tensors(self._files[0])
        if linear is not None:
            own = (f"{net}.safetensors", f"{net}.pth")
            self._files.append(_torchmetrics_file(net) if linear == "torchmetrics" else find_file(linear, own))
            held |= load_tensors(self._files[1])
        self._device = torch_device(device)
        convolutions, linears = self._files[0].label, self._files[-1].label
        self._convolutions = {
            number: tuple(_convolution(held, number, kind, convolutions).to(self._device) for kind in KINDS)
            for part in self.layout.parts
            for number in part
        }
        self._linear = [
            _linear(held, layer, len(self._convolutions[part[-1]][1]), linears).to(self._device)
            for layer, part in enumerate(self.layout.parts)
        ]
        bound = 2 * sum(float(weights.max()) for weights in self._linear)
        if not bound <= HIGHEST or any(bool((weights < 0).any()) for weights in self._linear):
            raise RewardError(f"{linears}: LPIPS' linear weights are from 0 up and small; these allow {bound:.3g}")

    def weight_files(self) -> tuple[WeightFile, ...]:
        """The one or two files that it was built from."""
        return tuple(found.weight_file() for found in self._files)

    def features(
        self,
        images: Tensor,  # [B, 3, H, W] in [0, 1]
    ) -> list[Tensor]:  # [B, C, H', W'] of each layer
        """Unit vectors at every place, scaled so that a squared difference of two pictures is their LPIPS."""
        from torch.nn.functional import conv2d, max_pool2d

        x = images.to(self._device, self._linear[0].dtype)
        shift, scale = (x.new_tensor(v).view(3, 1, 1) for v in ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)))
        x = (2 * x - 1 - shift) / scale
        layers = []
        for layer, part in enumerate(self.layout.parts):
            if layer and self._pooled(layer):
                x = max_pool2d(x, self.layout.pool, 2)
            for number in part:
                weight, bias = self._convolutions[number]
                stride, padding = self.layout.strides.get(number, 1), self.layout.paddings.get(number, 1)
                x = conv2d(x, weight, bias, stride, padding).relu()
            # Within the root, as torchmetrics has it: the root of 0 has no gradient
            unit = x / (x.square().sum(1, keepdim=True) + 1e-8).sqrt()
            places = x.shape[2] * x.shape[3]
            layers.append(unit * (self._linear[layer] / places).sqrt().view(-1, 1, 1))
        return layers

    def _pooled(self, layer: int) -> bool:
        """Whether torchvision's numbers leave room for a pooling between this part and the one before."""
        return self.layout.parts[layer][0] - self.layout.parts[layer - 1][-1] == 3


def sum_of_squares(layers: Sequence[Tensor]) -> Tensor:
    """[B]; over all layers, channels and places."""
    from torch import stack

    return stack([layer.square().sum((1, 2, 3)) for layer in layers]).sum(0)


def _convolution(held: Mapping[str, Tensor], number: int, kind: str, file: str) -> Tensor:
    """By torchvision's name, or by that of a whole LPIPS."""
    names = [f"features.{number}.{kind}", *(f"net.slice{part}.{number}.{kind}" for part in range(1, 6))]
    found = [held[name] for name in names if name in held]
    if not found or found[0].dim() != (4 if kind == "weight" else 1):
        raise RewardError(f"{file} holds no {names[0]}: it is no file of this network's weights")
    return found[0].detach().float()


def _linear(held: Mapping[str, Tensor], layer: int, channels: int, file: str) -> Tensor:
    name = f"lin{layer}.model.1.weight"
    if name not in held or held[name].numel() != channels:
        raise RewardError(f"{file} holds no {name} of {channels} channels: it is no file of this network's LPIPS")
    return held[name].detach().float().flatten()


def _torchvision_file(layout: Layout) -> Found:
    """torchvision's own weights, fetched once into torch's cache."""
    import torch
    import torchvision

    url = getattr(torchvision.models, layout.weights).IMAGENET1K_V1.url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The digits in the file's name are those of its digest
            torch.hub.download_url_to_file(url, str(path), path.stem.rpartition("-")[2], progress=False)
        except (OSError, RuntimeError) as err:
            raise RewardError(f"lpips: {url} cannot be fetched: {err}; fetch it and say network=PATH") from err
    return Found(path, url)


def _torchmetrics_file(net: Net) -> Found:
    found = find_spec("torchmetrics")
    if found is None or found.origin is None:
        raise RewardError(
            "lpips: the official linear weights come with torchmetrics, which is not installed: "
            "pip install torchmetrics, or say linear=PATH"
        )
    path = Path(found.origin).parent / "functional" / "image" / "lpips_models" / f"{net}.pth"
    if not path.is_file():
        raise RewardError(f"lpips: this torchmetrics has no {path}: say linear=PATH")
    return Found(path, f"torchmetrics/{path.name}")
