"""VBench's appearance style against its definition, with the CLIP that ships."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from mmrl.rewards import RewardInput, Status, load
from mmrl_shapeworld.shipped_models import CLIP

STYLE = "a red circle"


def frames(seed: int, count: int = 5) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (40, 52, 3), dtype=np.uint8)) for _ in range(count)]


def ask(video, **references):
    return RewardInput("a", 0, "a prompt that plays no part", video=video, references=references)


def logits_per_text(video, style: str) -> np.ndarray:
    """[T]: CLIP's own scaled similarities of the style and each frame, one frame a call, as VBench computes them."""
    network = AutoModel.from_pretrained(CLIP).eval()
    words = AutoTokenizer.from_pretrained(CLIP)([style], return_tensors="pt")
    processor = AutoImageProcessor.from_pretrained(CLIP, backend="pil")
    with torch.no_grad():
        found = [network(**words, **processor(images=frame, return_tensors="pt")).logits_per_text for frame in video]
    return torch.cat(found)[:, 0].numpy()


@pytest.mark.integration
def test_style_is_the_mean_logit_over_a_hundred():
    reward = load("appearance_style", model=str(CLIP), device="cpu")
    for seed in range(4):
        video = frames(seed, 2 + seed)
        output = reward.score([ask(video, style=STYLE)])
        assert output.status["appearance_style"] == [Status.OK]
        expected = np.mean(logits_per_text(video, STYLE) / 100)
        assert output.values["appearance_style"][0] == pytest.approx(expected, abs=1e-5)
        whole = load("appearance_style", model=str(CLIP), device="cpu", style="two blue squares").score([ask(video)])
        assert abs(whole.values["appearance_style"][0] - expected) > 1e-4  # another style, another number


def test_more_frames_than_a_batch_are_one_mean(monkeypatch):
    reward = load("appearance_style", model=str(CLIP), device="cpu", style=STYLE)
    video = frames(9, 7)
    whole = reward.score([ask(video)]).values["appearance_style"][0]
    monkeypatch.setattr("mmrl.rewards.images.appearance_style.BATCH_FRAMES", 3)
    assert reward.score([ask(video)]).values["appearance_style"][0] == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("references", [{}, {"style": ""}, {"style": 3}])
def test_samples_without_a_style_are_not_scored(references):
    output = load("appearance_style", model=str(CLIP), device="cpu").score([ask(frames(0), **references)])
    assert output.failures[0]["appearance_style"].kind == "missing"


def test_videos_of_one_frame_are_invalid_and_weights_are_named():
    reward = load("appearance_style", model=str(CLIP), device="cpu", style=STYLE)
    assert reward.score([ask(frames(0, 1))]).status["appearance_style"] == [Status.INVALID]
    assert len(reward.spec.weights) == 1
