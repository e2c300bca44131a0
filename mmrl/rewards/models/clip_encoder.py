"""CLIP-like networks of transformers and open_clip as one: pictures and texts become unit vectors of one space."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.model_files import (
    Found,
    explained,
    fetch_tokenizer,
    find_file,
    load_part,
    load_pretrained,
    load_tokenizer,
    torch_dtype,
)
from mmrl.rewards.models.model_reward import PictureReward, no_framing
from mmrl.rewards.models.preprocess import PromptCutter, framing_of_open_clip, framing_of_processor

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

OPEN_CLIP_CONFIG = "open_clip_config.json"
_OPEN_CLIP_PREFIXES = ("hf-hub:", "local-dir:")  # open_clip's own
_OPEN_CLIP_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)


class Encoder(ABC):
    """Makes pictures and texts unit vectors of one space."""

    network: Any  # an nn.Module; neither library says what its networks have besides
    files: tuple[Found, ...]
    framing: Callable[[Tensor], Tensor]
    """[B, 3, H, W] in [0, 1] to what `embed_pixels` takes, with gradients."""

    @abstractmethod
    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[B, 3, h, w] float32: RGB pictures as the network's own preprocessing makes them."""

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, D] of any length."""

    @abstractmethod
    def text_features(self, texts: Sequence[str]) -> Tensor:
        """[B, D] of any length."""

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """[B, D] float32 unit vectors of preprocessed pictures."""
        from torch.nn import functional

        own = next(self.network.parameters()).dtype
        return functional.normalize(self.image_features(pixels.to(own)).float(), dim=-1)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """[B, D] float32 unit vectors, without gradients. A text that occurs several times is encoded once."""
        import torch
        from torch.nn import functional

        different = list(dict.fromkeys(texts))
        rows = [different.index(text) for text in texts]
        with torch.no_grad():
            return functional.normalize(self.text_features(different).float(), dim=-1)[rows]

    def scale(self) -> Tensor:
        """What the network multiplies cosines with; for published CLIPs 100."""
        scale: Tensor = self.network.logit_scale.detach().float().exp()
        return scale

    def bias(self) -> Tensor:
        """What the network adds to scaled cosines: SigLIP has one, CLIP has none."""
        bias = getattr(self.network, "logit_bias", None)
        return self.scale().new_zeros(()) if bias is None else bias.detach().float()


class TransformersEncoder(Encoder):
    """A network of transformers with `get_image_features` and `get_text_features`: CLIP, SigLIP and their kin."""

    def __init__(self, reward: str, model: str, processor: str, revision: str | None, dtype: str) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.network, self.files = load_pretrained(AutoModel, model, revision, torch_dtype(dtype))
        kind = self.network.config.model_type
        both = hasattr(self.network, "get_image_features") and hasattr(self.network, "get_text_features")
        if kind == "siglip2" or not both:  # SigLIP 2 proper keeps a picture's shape; at one size it is a "siglip"
            raise RewardError(
                f"{model} is a {type(self.network).__name__}; due is a CLIP or SigLIP whose pictures all have one size"
            )
        beside = revision if processor == model else None
        # PIL, not torchvision, which is transformers' default: the models were trained and published with it.
        self._processor = load_part(AutoImageProcessor, processor, beside, backend="pil")
        self._tokenizer = load_tokenizer(processor, beside)
        # SigLIP was trained without a mask, on texts that are all padded to one length.
        self._masked = kind != "siglip"
        longest = min(self.network.config.text_config.max_position_embeddings, self._tokenizer.model_max_length)
        self._cutter = PromptCutter(reward, longest)
        try:
            self.framing = framing_of_processor(self._processor)
        except RewardError as err:
            self.framing = no_framing(reward, str(err))

    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[B, 3, h, w] float32, by the model's image processor."""
        pixels: Tensor = self._processor(images=list(pictures), return_tensors="pt")["pixel_values"]
        return pixels

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, D]."""
        return _pooled(self.network.get_image_features(pixel_values=pixels))

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """[B, D]."""
        texts, longest = self._cutter.cut(texts), self._cutter.tokens
        whole = self._tokenizer(texts, truncation=False, verbose=False)["input_ids"]
        self._cutter.note(sum(len(tokens) > longest for tokens in whole))
        read = self._tokenizer(texts, padding="max_length", truncation=True, max_length=longest, return_tensors="pt")
        given = {"input_ids", "attention_mask"} if self._masked else {"input_ids"}
        device = next(self.network.parameters()).device
        inputs = {name: tokens.to(device) for name, tokens in read.items() if name in given}
        return _pooled(self.network.get_text_features(**inputs))


class OpenClipEncoder(Encoder):
    """A network of open_clip."""

    def __init__(
        self,
        reward: str,
        architecture: str,
        weights: Found,
        dtype: str,
        resize_mode: str | None = None,
        words_of_transformers: bool = False,
    ) -> None:
        """`architecture`: an open_clip name, or local-dir:FOLDER that holds its configuration beside the weights.

        `words_of_transformers`: the tokenizer is one of transformers, not open_clip's own.
        """
        import open_clip
        from open_clip.transform import PreprocessCfg, image_transform_v2

        local = architecture.startswith("local-dir:")
        with explained(weights.label):
            self.network = open_clip.create_model(
                architecture,
                None if local else str(weights.path),
                pretrained_text=False,
                force_preprocess_cfg={"resize_mode": resize_mode},
            ).to(torch_dtype(dtype))
            # A configuration may say trust_remote_code for its tokenizer; what is said here counts more.
            refused = {"trust_remote_code": False} if words_of_transformers else {}
            self._tokenizer = open_clip.get_tokenizer(architecture, **refused)
        self.files = (weights,)
        settings = self.network.visual.preprocess_cfg
        self._preprocess = image_transform_v2(PreprocessCfg(**settings), is_train=False)
        self._cutter = PromptCutter(reward, self._tokenizer.context_length)
        try:
            self.framing = framing_of_open_clip(settings)
        except RewardError as err:
            self.framing = no_framing(reward, str(err))

    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[B, 3, h, w] float32, by open_clip's transform."""
        import torch

        return torch.stack([self._preprocess(picture) for picture in pictures])

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, D]."""
        features: Tensor = self.network.encode_image(pixels)
        return features

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """[B, D]."""
        texts = self._cutter.cut(texts)
        read, longest = self._tokenizer(texts), self._cutter.tokens
        # Where a text was cut the end-of-text token stands in a place that with more room another one takes.
        roomier = self._tokenizer(texts, context_length=longest + 1)[:, :longest]
        self._cutter.note(int((read != roomier).any(1).sum()))
        features: Tensor = self.network.encode_text(read.to(next(self.network.parameters()).device))
        return features


def load_encoder(
    reward: str, model: str, processor: str | None = None, revision: str | None = None, dtype: str = "float32"
) -> Encoder:
    """The encoder in a folder or hub repository, of either library; `reward` is who asks, for messages.

    A folder is open_clip's if it has an open_clip_config.json and no config.json; on the hub, write hf-hub:owner/name.
    `processor`: the folder or repository of tokenizer and image processor, if they are not beside the weights.
    """
    for prefix in _OPEN_CLIP_PREFIXES:
        if model.startswith(prefix):
            return _open_clip_encoder(reward, model.removeprefix(prefix), revision, dtype)
    place = Path(model).expanduser()
    if (place / OPEN_CLIP_CONFIG).is_file() and not (place / "config.json").is_file():
        return _open_clip_encoder(reward, model, revision, dtype)
    return TransformersEncoder(reward, model, processor or model, revision, dtype)


class EmbeddingReward(PictureReward):
    """A reward that is computed from a picture's embedding."""

    def __init__(
        self, encoder: Encoder, device: str, head: nn.Module | None = None, head_files: Sequence[Found] = ()
    ) -> None:
        """`head`: what else is to be moved and frozen with the encoder."""
        from torch import nn

        network = encoder.network if head is None else nn.ModuleList([encoder.network, head])
        super().__init__(network, [*encoder.files, *head_files], device)
        self.encoder, self.framing = encoder, encoder.framing

    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[B, 3, h, w] float32, by the encoder's own preprocessing."""
        return self.encoder.pixels(pictures)

    def rate(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] float32."""
        return self.rate_embeddings(self.encoder.embed_pixels(pixels), items)

    @abstractmethod
    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] scores of pictures given as unit vectors [B, D]."""

    def cosines(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """[B] cosines of pictures, given as unit vectors [B, D], and texts."""
        return (images * self.encoder.embed_texts(texts)).sum(-1)


def _open_clip_encoder(reward: str, model: str, revision: str | None, dtype: str) -> OpenClipEncoder:
    configuration = find_file(model, OPEN_CLIP_CONFIG, revision)
    weights = find_file(model, _OPEN_CLIP_WEIGHTS, revision)
    with explained(configuration.label):
        text = json.loads(configuration.path.read_text(encoding="utf-8"))["model_cfg"]["text_cfg"]
        words_of_transformers = bool(text.get("hf_tokenizer_name"))
    if words_of_transformers:  # open_clip reads it from the folder of the configuration, whatever its name
        fetch_tokenizer(model, revision)
    folder = f"local-dir:{configuration.path.parent}"
    return OpenClipEncoder(reward, folder, weights, dtype, words_of_transformers=words_of_transformers)


def _pooled(features: Any) -> Tensor:
    """The features themselves: transformers 5 wraps them, version 4 did not."""
    from torch import Tensor

    pooled: Tensor = features if isinstance(features, Tensor) else features.pooler_output
    return pooled
