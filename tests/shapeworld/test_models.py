"""The shipped weights: that they load anywhere, and are as good as they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, StableDiffusion3Pipeline

from mmrl.rewards.core import registry
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld import models, observer, shipped_models
from mmrl_shapeworld.captions import KINDS, sample_caption, sample_scene
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.splits import captions, samples
from tools.shapeworld_pretrain.autoencoder import reconstruction_share
from tools.shapeworld_pretrain.generator import encode_text, tokenize
from tools.shapeworld_pretrain.pictures import rendered, to_pictures, to_tensor


@pytest.fixture(scope="module")
def pipe() -> StableDiffusion3Pipeline:
    loaded = DiffusionPipeline.from_pretrained(shipped_models.PIPELINE)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def strict_share(pipe, count, **arguments):
    chosen = captions("validation")[:count]
    pictures = pipe([str(c) for c in chosen], generator=torch.Generator().manual_seed(3), **arguments).images
    return np.mean([judge(p, c).strict for p, c in zip(pictures, chosen, strict=True)])


def test_diffusers_loads_the_model_from_safetensors(pipe):
    assert type(pipe) is StableDiffusion3Pipeline
    weights = {path.suffix for path in shipped_models.PIPELINE.rglob("*") if path.is_file() and path.suffix != ".json"}
    assert weights == {".safetensors"}
    assert sum(path.stat().st_size for path in shipped_models.PIPELINE.rglob("*") if path.is_file()) < 9e6
    assert 1e6 < sum(p.numel() for p in pipe.transformer.parameters()) < 4e6


def test_third_text_encoder_outputs_zeros(pipe):
    text, _, pooled, _ = pipe.encode_prompt(["a red circle", "two blue squares"], None, None)
    assert text[:, models.CAPTION_TOKENS :].abs().max() == 0
    ours, our_pooled = encode_text(pipe, tokenize(pipe, ["a red circle", "two blue squares"]), 256)
    assert torch.equal(text, ours) and torch.equal(pooled, our_pooled)


def test_captions_are_tokenized_by_word(pipe):
    for caption in captions("train")[:200] + captions("heldout")[:100]:
        ids = pipe.tokenizer(str(caption)).input_ids
        assert len(ids) == len(str(caption).split()) + 2 <= models.CAPTION_TOKENS
        assert pipe.tokenizer.decode(ids, skip_special_tokens=True).strip() == str(caption)


@pytest.mark.integration
def test_base_has_medium_skill(pipe):
    """Neither hopeless nor done: reinforcement learning has room, and something to reinforce."""
    assert 0.25 < strict_share(pipe, 192, num_inference_steps=10, guidance_scale=1.0, max_sequence_length=1) < 0.6


@pytest.mark.slow
def test_default_pipeline_call_samples_as_well(pipe):
    """256 silent tokens, 28 steps, guidance 7: what a newcomer types."""
    assert strict_share(pipe, 12) > 0.2


@pytest.mark.integration
def test_autoencoder_reconstructs_images(pipe):
    assert reconstruction_share(pipe.vae, count=300) >= 0.98


def test_image_and_tensor_conversions_are_inverse():
    _, pictures = rendered(4, seed=1)
    assert torch.equal(to_tensor(to_pictures(pictures)), pictures)


@pytest.mark.integration
def test_observer_counts_things_at_any_size():
    rng = np.random.default_rng(9)
    right, wrong = [], []
    for number in range(150):
        caption, other = sample_caption(rng, KINDS), sample_caption(rng, KINDS)
        picture = draw(sample_scene(caption, rng), (32, 64, 128)[number % 3])
        right.append(observer.agreement(observer.load(), picture, caption))
        if observer.counts(other) != observer.counts(caption):
            wrong.append(observer.agreement(observer.load(), picture, other))
    assert np.mean(right) > 0.8 and np.mean(wrong) < 0.02


def test_shapeworld_rewards_are_found_and_distinguish_right_from_wrong():
    sample, other = samples("validation")[:2]
    rng = np.random.default_rng(0)
    picture = draw(sample_scene(captions("validation")[0], rng), 32)
    for name in ("shapeworld", "shapeworld_heldout"):
        reward = registry.load(name)
        output = reward.score([reward_input(each, picture, group=0, id=each.id) for each in (sample, other)])
        good, bad = output.values[name]
        assert good > bad + 0.4


def test_samples_without_a_caption_are_errors():
    from dataclasses import replace

    picture = draw(sample_scene(captions("validation")[0], np.random.default_rng(0)), 32)
    blind = replace(samples("validation")[0], answer=None)
    output = registry.load("shapeworld").score([reward_input(blind, picture, group=0, id="x")])
    assert np.isnan(output.values["shapeworld"][0]) and output.status["shapeworld"] == ["error"]
