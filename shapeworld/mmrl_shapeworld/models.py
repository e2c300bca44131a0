"""The embedded text-to-image pipeline: real diffusers and transformers classes, made small.

`StableDiffusion3Pipeline` with two tiny CLIP text encoders and a tokenizer trained on the captions. Its third
text encoder is a T5 whose final norm is zero, so that it adds exact zeros: diffusers' `from_pretrained` has no way
to leave it out of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CAPTION_TOKENS = 12
TEXT_WIDTH = 64


def autoencoder() -> AutoencoderKL:
    """32×32 RGB to a latent of 4×8×8, untrained."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 48),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=4,
        sample_size=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def transformer() -> SD3Transformer2DModel:
    """A 1.3 M-parameter MMDiT over 16 image tokens, untrained."""
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        attention_head_dim=24,
        num_attention_heads=4,
        caption_projection_dim=96,
        joint_attention_dim=2 * TEXT_WIDTH,
        pooled_projection_dim=2 * TEXT_WIDTH,
        pos_embed_max_size=16,
        qk_norm="rms_norm",
    )


def clip_tokenizer(captions: Iterable[str]) -> CLIPTokenizer:
    """CLIP's byte-pair tokenizer with merges learnt from the captions: each of their words becomes one token."""
    blank = CLIPTokenizer()
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    bpe.normalizer = blank.backend_tokenizer.normalizer
    bpe.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    bpe.train_from_iterator(
        captions,
        trainers.BpeTrainer(
            vocab_size=1000,
            special_tokens=["<|startoftext|>", "<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            end_of_word_suffix="</w>",
            show_progress=False,
        ),
    )
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    return CLIPTokenizer(vocab=bpe.get_vocab(), merges=merges, model_max_length=CAPTION_TOKENS)


def clip_text_encoder(tokenizer: PreTrainedTokenizerBase) -> CLIPTextModelWithProjection:
    """Two layers of width 64, untrained."""
    return CLIPTextModelWithProjection(clip_text_config(tokenizer))


def clip_text_config(tokenizer: PreTrainedTokenizerBase) -> CLIPTextConfig:
    """Return the configuration of every CLIP text encoder in this package."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=4 * TEXT_WIDTH,
        projection_dim=TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CAPTION_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def silent_t5() -> tuple[T5EncoderModel, PreTrainedTokenizerFast]:
    """A T5 encoder that outputs exact zeros, and a tokenizer that reads every text as its end token."""
    encoder = T5EncoderModel(
        T5Config(vocab_size=2, d_model=2 * TEXT_WIDTH, d_kv=8, d_ff=8, num_layers=1, num_heads=1, eos_token_id=1)
    )
    torch.nn.init.zeros_(encoder.encoder.final_layer_norm.weight)
    backend = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>"))
    backend.normalizer = normalizers.Replace(Regex(r"[\s\S]+"), "")
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    backend.decoder = decoders.WordPiece()
    return encoder, PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def build_pipeline(captions: Iterable[str], vae: AutoencoderKL) -> StableDiffusion3Pipeline:
    """An untrained pipeline around a trained autoencoder."""
    tokenizer = clip_tokenizer(captions)
    silent, silent_tokenizer = silent_t5()
    return StableDiffusion3Pipeline(
        transformer=transformer(),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0),
        vae=vae,
        text_encoder=clip_text_encoder(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=clip_text_encoder(tokenizer),
        tokenizer_2=tokenizer,
        text_encoder_3=silent,
        tokenizer_3=silent_tokenizer,
    )
