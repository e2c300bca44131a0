"""The embedded pipelines with a UNet, as Stable Diffusion 1.5 has one: text to image, edit and inpaint.

Real diffusers and transformers classes, made small. All three share their design, their tokenizer, and the
autoencoder of `mmrl_shapeworld.models`; they differ in what the UNet is shown beside the noisy latent:

    unet      4 channels: nothing                                      StableDiffusionPipeline
    edit      8 channels: the latent of the picture to edit            StableDiffusionInstructPix2PixPipeline
    inpaint   9 channels: the mask, the latent of the picture's rest   StableDiffusionInpaintPipeline
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiffusionPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextModel, CLIPTokenizer, PreTrainedTokenizerBase

from mmrl_shapeworld.models import TEXT_WIDTH, clip_text_config

Kind = Literal["unet", "edit", "inpaint"]
CHANNELS: dict[Kind, int] = {"unet": 4, "edit": 8, "inpaint": 9}
_PIPELINES: dict[Kind, type[Any]] = {
    "unet": StableDiffusionPipeline,
    "edit": StableDiffusionInstructPix2PixPipeline,
    "inpaint": StableDiffusionInpaintPipeline,
}


def unet(channels: int = 4) -> UNet2DConditionModel:
    """Return an untrained UNet of one million parameters: convolutions at 8×8 latents, and at 4×4 attention too."""
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=channels,
        out_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,  # heads, as the UNets of Stable Diffusion 1 read this number
        norm_num_groups=8,
    )


def widened(base: UNet2DConditionModel, channels: int) -> UNet2DConditionModel:
    """A UNet that is shown more: the weights of `base`, and zeros for the new channels (InstructPix2Pix)."""
    wide = unet(channels)
    state = base.state_dict()
    grown = torch.zeros_like(wide.conv_in.weight)
    grown[:, : state["conv_in.weight"].shape[1]] = state["conv_in.weight"]
    wide.load_state_dict({**state, "conv_in.weight": grown})
    return wide


def scheduler() -> DDIMScheduler:
    """The noise schedule of Stable Diffusion; the model predicts v, and the last step arrives at the picture."""
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        steps_offset=1,  # means nothing to this spacing; the pipelines of Stable Diffusion want it
        clip_sample=False,
    )


def text_encoder(tokenizer: PreTrainedTokenizerBase) -> CLIPTextModel:
    """Two layers of width 64, untrained."""
    return CLIPTextModel(clip_text_config(tokenizer))


def taught_words(
    encoder: CLIPTextModel, tokenizer: CLIPTokenizer, teacher: CLIPTextModel, known: CLIPTokenizer
) -> CLIPTextModel:
    """`encoder` with the layers of `teacher`, and its embedding of every token that both vocabularies have."""
    state = encoder.state_dict()
    theirs = {name: tensor for name, tensor in teacher.state_dict().items() if name in state}
    tokens = next(name for name in state if name.endswith("token_embedding.weight"))
    embedding, vocabulary = state[tokens].clone(), known.get_vocab()
    for token, number in tokenizer.get_vocab().items():
        if token in vocabulary:
            embedding[number] = theirs[tokens][vocabulary[token]]
    encoder.load_state_dict({**state, **theirs, tokens: embedding})
    return encoder


def build(
    kind: Kind, tokenizer: CLIPTokenizer, encoder: CLIPTextModel, vae: AutoencoderKL, denoiser: UNet2DConditionModel
) -> DiffusionPipeline:
    """A pipeline of these parts, without a safety checker: there is nothing to check."""
    return _PIPELINES[kind](
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
        unet=denoiser,
        scheduler=scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def save(pipe: DiffusionPipeline, folder: Path) -> None:
    """Write a pipeline in half precision, which loads as the same float32 numbers everywhere."""
    pipe.to(torch.float16)
    pipe.save_pretrained(folder, safe_serialization=True)
    pipe.to(torch.float32)
    for path in folder.rglob("*config.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts.pop("_name_or_path", None)  # where it came from on the machine that made it
        if "dtype" in facts:  # transformers loads in the precision that stands there
            facts["dtype"] = "float32"
        path.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def every_word() -> Iterable[str]:
    """Return texts that contain every word of the pipelines' prompts."""
    from mmrl_shapeworld.captions import NUMBERS, RELATIONS
    from mmrl_shapeworld.scenes import COLOURS, SHAPES

    words = [*COLOURS, *SHAPES, *(f"{shape}s" for shape in SHAPES), *NUMBERS.values(), *RELATIONS]
    words += ["and", "small", "large", "make", "the", "moves", "up", "down", "to"]
    yield from words * 20
    yield " ".join(words)
