"""LPIPS, the learned perceptual distance of two images, from published AlexNet or VGG16 weights.

torchmetrics' LPIPS is not used: here files are read as safetensors or with `weights_only`, and
`LPIPSNetwork.features` embeds each image once where a group is compared pairwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import WeightFile
from mmrl.rewards.images.similarity import ReferenceReward
from mmrl.rewards.models.model_files import ResolvedFile, find_file, load_tensors, loading_errors, torch_device

if TYPE_CHECKING:
    from torch import Tensor

Net = Literal["alex", "vgg"]
MAX_DISTANCE = 10.0
"""Above the largest distance, twice the sum of each layer's largest linear weight: 8.05 (AlexNet), 6.63 (VGG)."""
MIN_DISTANCE = 2.0**-24  # distance of different images whose float32 distance is 0


@dataclass(frozen=True)
class NetworkLayout:
    """A network of torchvision; after each of its parts the features are compared."""

    model: str  # torchvision's name of the network
    ends: tuple[int, ...]  # of the parts, among the modules of `features`
    min_side: int  # least width and height for which each part has an output
    weights: str  # torchvision's name of its weights
    files: tuple[str, ...]  # names of the network's weights in a folder


LAYOUTS: dict[Net, NetworkLayout] = {
    "alex": NetworkLayout(
        model="alexnet",
        ends=(2, 5, 8, 10, 12),
        min_side=31,
        weights="AlexNet_Weights",
        files=("lpips_alex.safetensors", "alexnet.safetensors", "alexnet-owt-7be5be79.pth"),
    ),
    "vgg": NetworkLayout(
        model="vgg16",
        ends=(4, 9, 16, 23, 30),
        min_side=16,
        weights="VGG16_Weights",
        files=("lpips_vgg.safetensors", "vgg16.safetensors", "vgg16-397923af.pth"),
    ),
}


class LPIPS(ReferenceReward):
    """Learned perceptual distance to `references["image"]`, from 0 (equal images) up; lower is better.

    Zhang et al. 2018, version 0.1 with linear weights (richzhang/PerceptualSimilarity lpips/lpips.py): features of
    AlexNet or VGG16 scaled to unit length at every position, their squared differences weighted by channel, averaged
    over positions, summed over five layers. Images below 31 (AlexNet) or 16 (VGG) pixels a side are a failure of the
    scorer.
    """

    name, range, direction = "lpips", (0.0, MAX_DISTANCE), "lower"
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
            net: "alex", the authors' choice for evaluation, or "vgg", theirs for optimisation.
            network: torchvision's weights of that network, or those of a whole LPIPS: a file, or a folder or hub
                repository that has lpips_alex.safetensors, alexnet.safetensors or alexnet-owt-7be5be79.pth (or
                lpips_vgg.safetensors, vgg16.safetensors, vgg16-397923af.pth); "torchvision" downloads them.
            linear: LPIPS' linear weights: a file, or a folder or hub repository that has alex.safetensors or alex.pth
                (or vgg); "torchmetrics" takes the official ones of that package; None means that `network` is a whole
                LPIPS.
            resize: scale the answer to the size of its reference.
            device: "auto" is CUDA if available.
        """
        super().__init__(resize)
        self.network = LPIPSNetwork(net, network, linear, device)
        self.min_side = self.network.layout.min_side

    def weight_files(self) -> tuple[WeightFile, ...]:
        return self.network.weight_files()

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        """Return [B] distances of images [B, 3, H, W] in [0, 1]."""
        from torch import cat

        both = self.network.features(cat([images, references.to(images)]))
        return sum_of_squares([layer[: len(images)] - layer[len(images) :] for layer in both]).to(images)

    def finalize(self, value: float, same: bool) -> float:
        return 0.0 if same else min(max(value, MIN_DISTANCE), MAX_DISTANCE)


class LPIPSNetwork:
    """A network, in float32, that maps images to features whose squared differences sum to LPIPS."""

    def __init__(self, net: Net, network: str, linear: str | None, device: str = "auto") -> None:
        """
        Raises:
            RewardError: a file cannot be found or downloaded, or has other weights.
        """
        import torch
        from torchvision.models import get_model

        if net not in get_args(Net):
            raise RewardError(f"lpips: net is {net!r}; it must be {' or '.join(get_args(Net))}")
        self.layout = LAYOUTS[net]
        if network == "torchvision":
            self._files = [_torchvision_file(self.layout)]
        else:
            self._files = [find_file(network, self.layout.files)]
        tensors = load_tensors(self._files[0])
        if linear is not None:
            names = (f"{net}.safetensors", f"{net}.pth")
            self._files.append(_torchmetrics_file(net) if linear == "torchmetrics" else find_file(linear, names))
            tensors |= load_tensors(self._files[1])
        self._device = torch_device(device)
        convolutions, linears = self._files[0].label, self._files[-1].label
        with torch.device("meta"):  # no memory, and no random numbers
            features: Any = get_model(self.layout.model).features.requires_grad_(False)[: self.layout.ends[-1]]
        state = {name: _parameter(tensors, name, convolutions) for name in features.state_dict()}
        with loading_errors(convolutions):
            features.load_state_dict(state, assign=True)
        features.to(self._device)
        self._parts = [features[start:end] for start, end in pairwise((0, *self.layout.ends))]
        channels = [[m.out_channels for m in part if isinstance(m, torch.nn.Conv2d)][-1] for part in self._parts]
        self._linear = [_linear(tensors, n, width, linears).to(self._device) for n, width in enumerate(channels)]
        bound = 2 * sum(float(weights.max()) for weights in self._linear)
        if not bound <= MAX_DISTANCE or any(bool((weights < 0).any()) for weights in self._linear):
            raise RewardError(
                f"{linears}: linear weights must be >= 0, bounded by {MAX_DISTANCE:g} in sum; these allow {bound:.3g}"
            )

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Return the one or two weight files."""
        return tuple(found.weight_file() for found in self._files)

    def features(
        self,
        images: Tensor,  # [B, 3, H, W] in [0, 1]
    ) -> list[Tensor]:  # [B, C, H', W'] of each layer
        """Return features scaled so that the summed squared difference of two images is their LPIPS."""
        x = images.to(self._device, self._linear[0].dtype)
        shift, scale = (x.new_tensor(v).view(3, 1, 1) for v in ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)))
        x = (2 * x - 1 - shift) / scale
        layers = []
        for part, linear in zip(self._parts, self._linear, strict=True):
            x = part(x)
            # Epsilon inside the root, as in torchmetrics: the root of 0 has no finite gradient
            unit = x / (x.square().sum(1, keepdim=True) + 1e-8).sqrt()
            places = x.shape[2] * x.shape[3]
            layers.append(unit * (linear / places).sqrt().view(-1, 1, 1))
        return layers


def sum_of_squares(layers: Sequence[Tensor]) -> Tensor:
    """Return [B] sums over all layers, channels and positions."""
    from torch import stack

    return stack([layer.square().sum((1, 2, 3)) for layer in layers]).sum(0)


def _parameter(tensors: Mapping[str, Tensor], parameter: str, file: str) -> Tensor:
    """Return a parameter by its name in torchvision or in a whole LPIPS."""
    names = [f"features.{parameter}", *(f"net.slice{part}.{parameter}" for part in range(1, 6))]
    found = [tensors[name] for name in names if name in tensors]
    if not found:
        raise RewardError(f"{file} has no {names[0]}: expected weights of this network")
    return found[0].detach().float()


def _linear(tensors: Mapping[str, Tensor], layer: int, channels: int, file: str) -> Tensor:
    name = f"lin{layer}.model.1.weight"
    if name not in tensors or tensors[name].numel() != channels:
        raise RewardError(f"{file} has no {name} of {channels} channels: expected this network's linear weights")
    return tensors[name].detach().float().flatten()


def _torchvision_file(layout: NetworkLayout) -> ResolvedFile:
    """Return torchvision's weights, downloaded once into torch's cache."""
    import torch
    import torchvision

    url = getattr(torchvision.models, layout.weights).IMAGENET1K_V1.url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The suffix of the file's name is the start of its SHA-256
            torch.hub.download_url_to_file(url, str(path), path.stem.rpartition("-")[2], progress=False)
        except (OSError, RuntimeError) as err:
            raise RewardError(f"lpips: {url} cannot be downloaded: {err}; download it and set network=PATH") from err
    return ResolvedFile(path, url)


def _torchmetrics_file(net: Net) -> ResolvedFile:
    found = find_spec("torchmetrics")
    if found is None or found.origin is None:
        raise RewardError(
            "lpips: the official linear weights come with torchmetrics, which is not installed: "
            "pip install torchmetrics, or set linear=PATH"
        )
    path = Path(found.origin).parent / "functional" / "image" / "lpips_models" / f"{net}.pth"
    if not path.is_file():
        raise RewardError(f"lpips: this torchmetrics has no {path}: set linear=PATH")
    return ResolvedFile(path, f"torchmetrics/{path.name}")
