"""The embedded autoregressive generator: it loads anywhere, its codes are pictures, and it draws middling well."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mmrl_shapeworld import image_ar
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.shipped_models import IMAGE_AR
from tools.shapeworld_pretrain import image_ar as pretrain
from tools.shapeworld_pretrain.pictures import rendered, to_pictures


@pytest.fixture(scope="module")
def patches():
    return load_file(IMAGE_AR / "patches.safetensors")["patches"]


@pytest.mark.integration
def test_transformers_loads_the_image_token_model():
    model = AutoModelForCausalLM.from_pretrained(IMAGE_AR / "language_model")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 1.2e6
    words = AutoTokenizer.from_pretrained(IMAGE_AR / "tokenizer")
    assert words.get_vocab() == image_ar.tokenizer().get_vocab()


def test_folder_is_small_and_holds_no_code():
    files = [path for path in IMAGE_AR.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert sum(path.stat().st_size for path in files) < 4.5e6


@pytest.mark.integration
def test_codes_reconstruct_images(patches):
    """For unseen images of all kinds. A negative control: the codes of another image do not."""
    captions, pictures = rendered(200, seed=500)
    codes = pretrain.codes_of(patches, pictures)
    assert codes.shape == (200, 64) and patches.shape == (image_ar.CODES, 3, 4, 4)
    made = to_pictures(pretrain.decoded(patches, codes))
    kept = sum(judge(p, c).strict for p, c in zip(made, captions, strict=True)) / 200
    swapped = sum(judge(p, c).strict for p, c in zip(made[1:], captions, strict=False)) / 200
    assert kept > 0.9 > 0.2 > swapped


@pytest.mark.integration
def test_base_has_medium_skill():
    """Neither hopeless nor done: reinforcement learning has room, and something to reinforce."""
    strict, score = pretrain.skill(IMAGE_AR, count=128)
    assert 0.25 < strict < 0.75 and score > 0.5


@pytest.mark.slow
def test_pretraining_is_deterministic_by_seed(tmp_path):
    made = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pretrain.train(tmp_path / name, steps=2, seed=seed, batch=4, pictures=40)
        made.append(load_file(tmp_path / name / "language_model" / "model.safetensors"))
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])
    assert any(not torch.equal(made[0][key], made[2][key]) for key in made[0])
