"""From a configuration to a model that draws token by token."""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    Emu3ForConditionalGeneration,
    JanusForConditionalGeneration,
)

from mmrl.config.policy import ImageTokenConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import load_codec
from mmrl.generation.image_tokens.emu3 import Emu3
from mmrl.generation.image_tokens.image_token_model import ImageTokenModel
from mmrl.generation.image_tokens.janus import Janus
from mmrl.generation.image_tokens.vq_causal_lm import DESCRIPTION, LANGUAGE_MODEL, TOKENIZER, VQCausalLM, VQCausalLMSpec


def load_image_token_model(config: ImageTokenConfig, device: torch.device) -> ImageTokenModel:
    """The model that a configuration names, in evaluation mode.

    Raises:
        ConfigError: it cannot be loaded, or is of no image_model that is known here.
    """
    try:
        image_model = _load(config, device)
    except (OSError, ValueError) as err:
        if isinstance(err, ConfigError):
            raise
        first = str(err).partition("\n")[0]
        raise ConfigError(f"policy.model: {config.model} cannot be loaded as a token image generator: {first}") from err
    image_model.network.eval()
    for (
        module
    ) in image_model.network.modules():  # gradient checkpointing needs the training mode, replay needs no chance
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return image_model


def _load(config: ImageTokenConfig, device: torch.device) -> ImageTokenModel:
    dtype = getattr(torch, config.dtype)
    folder = _folder(config)
    if (folder / DESCRIPTION).is_file():
        if config.size is not None:
            raise ConfigError(f"policy.size: {config.model} draws one size alone, that of its grid: leave it out")
        model = AutoModelForCausalLM.from_pretrained(folder / LANGUAGE_MODEL, dtype=dtype, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(folder / TOKENIZER)
        codec = load_codec(folder, device)
        return VQCausalLM(model.to(device), tokenizer, codec, VQCausalLMSpec.read(folder / DESCRIPTION))
    kind = AutoConfig.from_pretrained(folder).model_type
    if kind == "janus":
        if config.size is not None:
            raise ConfigError("policy.size: Janus draws one size alone: leave it out")
        janus = JanusForConditionalGeneration.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return Janus(janus.to(device), AutoProcessor.from_pretrained(folder))
    if kind == "emu3":
        emu3 = Emu3ForConditionalGeneration.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return Emu3(emu3.to(device), AutoProcessor.from_pretrained(folder), config.size)
    raise ConfigError(
        f"policy.model: {config.model} is a {kind}; kind image_tokens draws with janus, emu3, or a folder with "
        f"{DESCRIPTION} (docs/image-tokens.md)"
    )


def _folder(config: ImageTokenConfig) -> Path:
    """A folder of that name, or the files of a repository on the Hub; never a pickle, never code."""
    if Path(config.model).is_dir():
        return Path(config.model)
    wanted = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        return Path(snapshot_download(config.model, revision=config.revision, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as err:
        first = str(err).partition("\n")[0]
        raise ConfigError(f"policy.model: {config.model} is no folder, and cannot be fetched: {first}") from err
