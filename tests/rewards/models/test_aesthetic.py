"""LAION's predictor against its published steps, in NumPy."""

import numpy as np
import pytest
import torch

from mmrl.rewards import RewardError, load
from tests.rewards.models.tiny_models import answers, head_tensors


def published(features: np.ndarray, tensors: dict) -> np.ndarray:
    """[B]: normalise with NumPy, then five linear layers."""
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    values = features / np.where(length == 0, 1, length)
    for layer in (0, 2, 4, 6, 7):
        values = values @ tensors[f"layers.{layer}.weight"].double().numpy().T
        values = values + tensors[f"layers.{layer}.bias"].double().numpy()
    return values[:, 0]


@pytest.mark.integration
def test_aesthetic_equals_the_published_predictor(aesthetic):
    from transformers import AutoImageProcessor, CLIPVisionModelWithProjection

    items = answers(500)
    model = CLIPVisionModelWithProjection.from_pretrained(aesthetic["model"]).eval()
    processor = AutoImageProcessor.from_pretrained(aesthetic["model"], backend="pil")
    with torch.no_grad():
        seen = model(**processor(images=[item.image for item in items], return_tensors="pt")).image_embeds
    expected = published(seen.double().numpy(), head_tensors(24))
    scored = load("aesthetic", **aesthetic).score(items).values["aesthetic"]
    np.testing.assert_allclose(scored, expected, rtol=1e-4, atol=1e-4)
    unnormalised = published(seen.double().numpy() / 2 * np.ones((1, 24)), head_tensors(24, seed=1))
    assert np.abs(unnormalised - scored).max() > 0.1  # another head scores otherwise: the control


def test_aesthetic_head_loads_from_a_folder_and_from_safetensors(aesthetic, clip, tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "pickled").mkdir()
    torch.save(head_tensors(24), tmp_path / "pickled" / "aesthetic-model.pth")
    save_file(head_tensors(24), tmp_path / "head.safetensors")
    items = answers(3)
    expected = load("aesthetic", **aesthetic).score(items).values["aesthetic"]
    for head in (tmp_path / "pickled", tmp_path / "head.safetensors"):
        scored = load("aesthetic", model=clip, head=str(head)).score(items).values["aesthetic"]
        np.testing.assert_array_equal(scored, expected)


def test_heads_of_another_kind_or_width_raise(clip, tmp_path):
    torch.save({"linear.weight": torch.zeros(1, 24)}, tmp_path / "linear.pth")
    with pytest.raises(RewardError, match=r"linear.pth is not a head of five linear layers: it lacks layers.0.weight"):
        load("aesthetic", model=clip, head=str(tmp_path / "linear.pth"))
    torch.save(head_tensors(768), tmp_path / "wide.pth")
    with pytest.raises(RewardError, match=r"has embeddings of 24 numbers, but .*wide.pth takes 768"):
        load("aesthetic", model=clip, head=str(tmp_path / "wide.pth"))
