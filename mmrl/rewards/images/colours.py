"""The colour of a thing in a picture: GenEval's second seam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from PIL import Image

from mmrl.rewards.images.detector import Detection
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rewards.models.loading import torch_device
from mmrl.rewards.spec import WeightFile

if TYPE_CHECKING:
    from torch import Tensor

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
"""The colours that GenEval asks for."""
TEMPLATES = ("a photo of a {colour} {thing}", "a photo of a {colour}-colored {thing}", "a photo of a {colour} object")
BLANK = (0x99, 0x99, 0x99)
"""What the background becomes where a mask tells it from the thing."""


class ColourClassifier(Protocol):
    """Names colours: `ClipColours`, or one of your own."""

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        """The colour, out of `COLOURS`, of each of some things of one class in an RGB picture."""
        ...

    def weight_files(self) -> tuple[WeightFile, ...]:
        """What it was built from: part of what identifies a score."""
        ...


class ClipColours:
    """GenEval's zero-shot classifier over any CLIP of transformers or open_clip (its own is OpenAI's ViT-L/14).

    A thing is cut out by its box, its background made grey where the detector gives masks, and gets the colour whose
    three sentences it is nearest to.
    """

    def __init__(self, model: str, device: str = "auto") -> None:
        """
        Raises:
            RewardError: the model cannot be loaded, or is no CLIP.
        """
        self._clip, self._device = load_encoder("geneval", model), torch_device(device)
        self._clip.network.eval().requires_grad_(False).to(self._device)
        self._known: dict[str, Tensor] = {}

    def weight_files(self) -> tuple[WeightFile, ...]:
        """The files that it was loaded from."""
        return tuple(found.weight_file() for found in self._clip.files)

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        """The colour of each of some things of one class."""
        import torch

        if not found:
            return []
        pixels = self._clip.pixels([crop(image, thing) for thing in found])
        with torch.inference_mode():
            likeness = self._clip.embed_pixels(pixels.to(self._device)) @ self._classifier(found[0].label).T
        return [COLOURS[index] for index in likeness.argmax(1).tolist()]

    def _classifier(self, thing: str) -> Tensor:
        """[10, D]; a unit vector for each colour of such a thing: the mean of its sentences."""
        from torch.nn.functional import normalize

        if thing not in self._known:
            sentences = [template.format(colour=c, thing=thing) for c in COLOURS for template in TEMPLATES]
            vectors = self._clip.embed_texts(sentences)
            self._known[thing] = normalize(vectors.view(len(COLOURS), len(TEMPLATES), -1).mean(1), dim=-1)
        return self._known[thing]


def crop(image: Image.Image, thing: Detection) -> Image.Image:
    """A thing alone, at least one pixel of it; boxes that reach out of the picture are cut."""
    left, top, right, bottom = (round(side) for side in thing.box)
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    right, bottom = min(max(right, left + 1), image.width), min(max(bottom, top + 1), image.height)
    seen = image.crop((left, top, right, bottom))
    if thing.mask is None:
        return seen
    height, width = thing.mask.shape
    across, down = width / image.width, height / image.height
    part = (left * across, top * down, right * across, bottom * down)
    mask = Image.fromarray(thing.mask).resize(seen.size, Image.Resampling.NEAREST, box=part)
    return Image.composite(seen, Image.new("RGB", seen.size, BLANK), mask)
