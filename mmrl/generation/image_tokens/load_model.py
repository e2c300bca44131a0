"""Load the token image generator that a configuration names."""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers import AutoConfig

from mmrl.config.policy import IMAGE_TOKEN_MODELS, ImageTokenConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.image_token_model import ImageTokenModel
from mmrl.generation.image_tokens.vq_causal_lm import SPEC_FILE


def load_image_token_model(config: ImageTokenConfig, device: torch.device) -> ImageTokenModel:
    """Return the configured model in evaluation mode, without dropout.

    Raises:
        ConfigError: it cannot be loaded, or no registered class loads it.
    """
    try:
        folder = _folder(config)
        image_model = _model_class(config, folder).from_folder(folder, config, device)
    except (OSError, ValueError) as err:
        if isinstance(err, ConfigError):
            raise
        first = str(err).partition("\n")[0]
        raise ConfigError(f"policy.model: {config.model} cannot be loaded as a token image generator: {first}") from err
    image_model.network.eval()
    for module in image_model.network.modules():  # checkpointing sets the training mode, but replay needs determinism
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return image_model


def _model_class(config: ImageTokenConfig, folder: Path) -> type[ImageTokenModel]:
    """Return the class that `policy.architecture` names, or else the one of the folder's `model_type`."""
    if config.architecture is not None:
        return IMAGE_TOKEN_MODELS.load(config.architecture)
    if (folder / SPEC_FILE).is_file():
        return IMAGE_TOKEN_MODELS.load("vq_causal_lm")
    kind = AutoConfig.from_pretrained(folder).model_type
    known = [name for name in IMAGE_TOKEN_MODELS.names() if name != "vq_causal_lm"]
    if kind in known:
        return IMAGE_TOKEN_MODELS.load(kind)
    raise ConfigError(
        f"policy.model: {config.model} is a {kind}; kind image_tokens draws with {', '.join(known)}, or a folder with "
        f"{SPEC_FILE} (docs/image-tokens.md). Name a class of your own with policy.architecture"
    )


def _folder(config: ImageTokenConfig) -> Path:
    """Return a local folder, or download a repository of the Hub; pickles and code are never downloaded."""
    if Path(config.model).is_dir():
        return Path(config.model)
    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        return Path(snapshot_download(config.model, revision=config.revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as err:
        first = str(err).partition("\n")[0]
        raise ConfigError(f"policy.model: {config.model} is no folder, and cannot be fetched: {first}") from err
