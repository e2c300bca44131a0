"""The shipped generator of scales, and training while the resolution grows."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.generation.image_tokens import ImageTokenPolicy
from mmrl.generation.image_tokens.image_token_policy import load_image_token_model
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.growing_pictures import _stages, growing_resolution
from mmrl_shapeworld.scale_model import CODES, PLACES
from mmrl_shapeworld.shipped_models import SCALES
from mmrl_shapeworld.splits import captions, samples
from tools.shapeworld_pretrain.pictures import rendered, to_pictures
from tools.shapeworld_pretrain.scales import cluster_means

CONFIG = ImageTokenConfig(model=str(SCALES), train="full", device="cpu")


def test_transformers_loads_the_language_model_and_it_is_small():
    model = AutoModelForCausalLM.from_pretrained(SCALES / "language_model")
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 1.4e6
    assert {path.suffix for path in SCALES.rglob("*") if path.is_file()} == {".safetensors", ".json"}
    assert sum(path.stat().st_size for path in SCALES.rglob("*") if path.is_file()) < 2.6e6


@pytest.mark.integration
def test_the_finest_scale_of_true_codes_shows_the_true_picture():
    """The pictures are unseen; a negative control is the picture that the scale before it shows."""
    model = load_image_token_model(CONFIG, torch.device("cpu"))
    named, pictures = rendered(96, seed=502)
    codes = model.encode(to_pictures(pictures))
    assert codes.shape == (96, PLACES) and codes.max() < CODES
    coarse = load_image_token_model(CONFIG.model_copy(update={"size": (16, 16)}), torch.device("cpu"))
    shares = [
        sum(judge(picture, caption).strict for picture, caption in zip(drawn, named, strict=True)) / 96
        for drawn in (model.decode(codes), coarse.decode(codes[:, :21]))
    ]
    assert shares[0] > 0.9 and shares[1] < 0.5


@pytest.mark.integration
def test_pictures_follow_captions_more_often_than_those_of_other_captions():
    policy = ImageTokenPolicy.from_config(CONFIG, ImageTokenSamplingConfig())
    chosen = samples("validation")[:96]
    named = captions("validation")[:96]
    drawn = policy.rollout([RolloutRequest(sample, 1, row) for row, sample in enumerate(chosen)], seed=0).media
    score = sum(judge(picture, caption).score for picture, caption in zip(drawn, named, strict=True)) / 96
    other = sum(judge(picture, caption).score for picture, caption in zip(drawn[1:], named, strict=False)) / 95
    assert score > 0.4 and score > 2 * other, (score, other)


def test_means_of_clusters():
    points = torch.tensor([[0.0, 0], [2, 0], [100, 100], [100, 104]])
    found = cluster_means(points, 2, rounds=20)
    assert sorted(found.tolist()) in ([[1, 0], [100, 102]], [[0, 0], [67, 68]], [[2, 0], [67, 68]])


def test_methods_have_equally_many_iterations():
    for method in ("sft", "last", "alternating"):
        stages = _stages(method, 7, 5)
        assert sum(count for _, _, count in stages) == 24
    assert [stage[:2] for stage in _stages("alternating", 7, 5)] == [("sft", 16), ("dpo", 16), ("sft", 32), ("dpo", 32)]


@pytest.mark.slow
def test_rounds_train_at_both_resolutions():
    found = growing_resolution(
        1, "alternating", on="pictured-development", prompts=8, imitated=1, preferred=1, rows=16, sft_lr=1e-3
    )
    start = growing_resolution(1, "none", on="pictured-development", prompts=8)
    assert all(len(values) == 8 for values in found.values())
    assert found["observed"] != start["observed"]
