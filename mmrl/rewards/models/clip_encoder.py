"""Encoders of images and texts into unit vectors of one space, from CLIP-like networks of transformers or open_clip."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.model_files import (
    ResolvedFile,
    fetch_tokenizer,
    find_file,
    load_component,
    load_pretrained,
    load_tokenizer,
    loading_errors,
    torch_device,
    torch_dtype,
)
from mmrl.rewards.models.model_reward import PixelReward, no_tensor_preprocess
from mmrl.rewards.models.preprocess import PromptTruncator, preprocess_of_open_clip, preprocess_of_processor

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

OPEN_CLIP_CONFIG = "open_clip_config.json"
_OPEN_CLIP_PREFIXES = ("hf-hub:", "local-dir:")  # as open_clip writes them
_OPEN_CLIP_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)


class Encoder(ABC):
    """A network that embeds images and texts as unit vectors of one space."""

    network: Any  # an nn.Module; neither library types its further attributes
    files: tuple[ResolvedFile, ...]
    tensor_preprocess: Callable[[Tensor], Tensor]
    """Differentiable preprocessing of [B, 3, H, W] in [0, 1] for `embed_pixels`."""

    def freeze(self, device: str) -> None:
        """Evaluate the network without gradients from now on, on a device; "auto" is the GPU if there is one."""
        self.network.eval().requires_grad_(False).to(torch_device(device))

    @abstractmethod
    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        """Return RGB images, preprocessed as published, as [B, 3, h, w] float32."""

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """Return image features [B, D], not normalised."""

    @abstractmethod
    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Return text features [B, D], not normalised."""

    def layer_features(self, pixels: Tensor) -> Tensor:
        """Return [B, F] float32: the mean and the largest value over all tokens of each unit of every layer.

        Raises:
            RewardError: the network does not give the states of its layers.
        """
        raise RewardError(
            f"{type(self.network).__name__} does not give its layers: take a CLIP or SigLIP of transformers"
        )

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Return [B, D] float32 unit vectors of preprocessed images."""
        from torch.nn import functional

        dtype = next(self.network.parameters()).dtype
        return functional.normalize(self.image_features(pixels.to(dtype)).float(), dim=-1)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Return [B, D] float32 unit vectors, without gradients. Equal texts are encoded once."""
        import torch
        from torch.nn import functional

        distinct = list(dict.fromkeys(texts))
        rows = [distinct.index(text) for text in texts]
        with torch.no_grad():
            return functional.normalize(self.text_features(distinct).float(), dim=-1)[rows]

    def scale(self) -> Tensor:
        """Return the factor of cosines, exp(logit_scale); 100 for published CLIPs."""
        scale: Tensor = self.network.logit_scale.detach().float().exp()
        return scale

    def bias(self) -> Tensor:
        """Return the bias of scaled cosines: SigLIP has one; for CLIP it is 0."""
        bias = getattr(self.network, "logit_bias", None)
        return self.scale().new_zeros(()) if bias is None else bias.detach().float()


class TransformersEncoder(Encoder):
    """A network of transformers with `get_image_features` and `get_text_features`, such as CLIP and SigLIP."""

    def __init__(self, reward: str, model: str, processor: str, revision: str | None, dtype: str) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.network, self.files = load_pretrained(AutoModel, model, revision, torch_dtype(dtype))
        kind = self.network.config.model_type
        both = hasattr(self.network, "get_image_features") and hasattr(self.network, "get_text_features")
        if kind == "siglip2" or not both:  # SigLIP 2 with variable image shapes; at one size it is a "siglip"
            raise RewardError(
                f"{model} is a {type(self.network).__name__}; expected a CLIP or SigLIP with a fixed image size"
            )
        processor_revision = revision if processor == model else None
        # PIL, with which the models were trained and published, instead of torchvision, transformers' default.
        self._processor = load_component(AutoImageProcessor, processor, processor_revision, backend="pil")
        self._tokenizer = load_tokenizer(processor, processor_revision)
        # SigLIP was trained without an attention mask, on texts padded to one length.
        self._masked = kind != "siglip"
        longest = min(self.network.config.text_config.max_position_embeddings, self._tokenizer.model_max_length)
        self._truncator = PromptTruncator(reward, longest)
        try:
            self.tensor_preprocess = preprocess_of_processor(self._processor)
        except RewardError as err:
            self.tensor_preprocess = no_tensor_preprocess(reward, str(err))

    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        pixels: Tensor = self._processor(images=list(images), return_tensors="pt")["pixel_values"]
        return pixels

    def image_features(self, pixels: Tensor) -> Tensor:
        return _pooled(self.network.get_image_features(pixel_values=pixels))

    def layer_features(self, pixels: Tensor) -> Tensor:
        import torch

        tower = self.network.vision_model
        states = tower(pixels.to(next(tower.parameters()).dtype), output_hidden_states=True).hidden_states
        return torch.cat([part for each in states for part in (each.mean(1), each.amax(1))], -1).float()

    def text_features(self, texts: Sequence[str]) -> Tensor:
        tokenized = self._truncator.tokenize(self._tokenizer, texts)
        used = {"input_ids", "attention_mask"} if self._masked else {"input_ids"}
        device = next(self.network.parameters()).device
        inputs = {name: tokens.to(device) for name, tokens in tokenized.items() if name in used}
        return _pooled(self.network.get_text_features(**inputs))


class OpenClipEncoder(Encoder):
    """A network of open_clip."""

    def __init__(
        self,
        reward: str,
        architecture: str,
        weights: ResolvedFile,
        dtype: str,
        resize_mode: str | None = None,
        transformers_tokenizer: bool = False,
    ) -> None:
        """`architecture`: an open_clip name, or local-dir:FOLDER with its configuration beside the weights.

        `transformers_tokenizer`: the tokenizer is one of transformers, not of open_clip.
        """
        import open_clip
        from open_clip.transform import PreprocessCfg, image_transform_v2

        local = architecture.startswith("local-dir:")
        with loading_errors(weights.label):
            self.network = open_clip.create_model(
                architecture,
                None if local else str(weights.path),
                pretrained_text=False,
                force_preprocess_cfg={"resize_mode": resize_mode},
            ).to(torch_dtype(dtype))
            # A configuration may set trust_remote_code for its tokenizer; this argument overrides it.
            options = {"trust_remote_code": False} if transformers_tokenizer else {}
            self._tokenizer = open_clip.get_tokenizer(architecture, **options)
        self.files = (weights,)
        settings = self.network.visual.preprocess_cfg
        self._preprocess = image_transform_v2(PreprocessCfg(**settings), is_train=False)
        self._truncator = PromptTruncator(reward, self._tokenizer.context_length)
        try:
            self.tensor_preprocess = preprocess_of_open_clip(settings)
        except RewardError as err:
            self.tensor_preprocess = no_tensor_preprocess(reward, str(err))

    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        import torch

        return torch.stack([self._preprocess(image) for image in images])

    def image_features(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.network.encode_image(pixels)
        return features

    def text_features(self, texts: Sequence[str]) -> Tensor:
        texts = self._truncator.truncate(texts)
        tokens, longest = self._tokenizer(texts), self._truncator.tokens
        # In a truncated text the last token is end-of-text, where a longer context has another token.
        longer = self._tokenizer(texts, context_length=longest + 1)[:, :longest]
        self._truncator.warn_truncated(int((tokens != longer).any(1).sum()))
        features: Tensor = self.network.encode_text(tokens.to(next(self.network.parameters()).device))
        return features


def load_encoder(
    reward: str, model: str, processor: str | None = None, revision: str | None = None, dtype: str = "float32"
) -> Encoder:
    """Return the encoder in a folder or hub repository, of either library; `reward` is a name for messages.

    A folder is open_clip's if it has an open_clip_config.json and no config.json; for the hub, write
    hf-hub:owner/name.
    `processor`: the folder or repository of tokenizer and image processor, if not that of the weights.
    """
    for prefix in _OPEN_CLIP_PREFIXES:
        if model.startswith(prefix):
            return _open_clip_encoder(reward, model.removeprefix(prefix), revision, dtype)
    place = Path(model).expanduser()
    if (place / OPEN_CLIP_CONFIG).is_file() and not (place / "config.json").is_file():
        return _open_clip_encoder(reward, model, revision, dtype)
    return TransformersEncoder(reward, model, processor or model, revision, dtype)


class EmbeddingReward(PixelReward):
    """A reward that is computed from an image's embedding."""

    def __init__(
        self, encoder: Encoder, device: str, head: nn.Module | None = None, head_files: Sequence[ResolvedFile] = ()
    ) -> None:
        """`head`: a further module to move and freeze with the encoder."""
        from torch import nn

        network = encoder.network if head is None else nn.ModuleList([encoder.network, head])
        super().__init__(network, [*encoder.files, *head_files], device)
        self.encoder, self.tensor_preprocess = encoder, encoder.tensor_preprocess

    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        return self.encoder.pixels(images)

    def score_pixels(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        return self.score_embeddings(self.encoder.embed_pixels(pixels), items)

    @abstractmethod
    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores of images, given as unit vectors [B, D]."""

    def cosines(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """Return [B] cosines of images, given as unit vectors [B, D], and texts."""
        return (images * self.encoder.embed_texts(texts)).sum(-1)


def _open_clip_encoder(reward: str, model: str, revision: str | None, dtype: str) -> OpenClipEncoder:
    configuration = find_file(model, OPEN_CLIP_CONFIG, revision)
    weights = find_file(model, _OPEN_CLIP_WEIGHTS, revision)
    with loading_errors(configuration.label):
        text = json.loads(configuration.path.read_text(encoding="utf-8"))["model_cfg"]["text_cfg"]
        transformers_tokenizer = bool(text.get("hf_tokenizer_name"))
    if transformers_tokenizer:  # open_clip reads it from the configuration's folder, not by this name
        fetch_tokenizer(model, revision)
    folder = f"local-dir:{configuration.path.parent}"
    return OpenClipEncoder(reward, folder, weights, dtype, transformers_tokenizer=transformers_tokenizer)


def _pooled(features: Any) -> Tensor:
    """Return the features, which transformers 5 wraps and version 4 does not."""
    from torch import Tensor

    pooled: Tensor = features if isinstance(features, Tensor) else features.pooler_output
    return pooled
