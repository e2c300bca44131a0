"""Folders of tiny models, each written once a session."""

from pathlib import Path

import pytest

from tests.rewards.models import tiny_models, tiny_qwen_scorers, tiny_vlm


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def clip(folders) -> str:
    return str(tiny_models.clip_folder(folders / "clip"))


@pytest.fixture(scope="session")
def siglip(folders) -> str:
    return str(tiny_models.siglip_folder(folders / "siglip"))


@pytest.fixture(scope="session")
def open_clip_form(folders) -> str:
    return str(tiny_models.open_clip_folder(folders / "open-clip"))


@pytest.fixture(scope="session")
def hps(folders) -> dict:
    """Arguments of HPSv2 and HPSv21: the files, and the architecture's name."""
    import json

    import open_clip

    place = tiny_models.hps_folder(tiny_models.hps_folder(folders / "hps"), "HPS_v2.1_compressed.pt")
    (place / "tiny-ViT-H-14.json").write_text(json.dumps(tiny_models.OPEN_CLIP))
    open_clip.add_model_config(place / "tiny-ViT-H-14.json")
    return {"model": str(place), "architecture": "tiny-ViT-H-14"}


@pytest.fixture(scope="session")
def aesthetic(folders, clip) -> dict:
    """Arguments of Aesthetic."""
    import torch

    place = folders / "sac+logos+ava1-l14-linearMSE.pth"
    torch.save(tiny_models.head_tensors(24), place)
    return {"model": clip, "head": str(place)}


@pytest.fixture(scope="session")
def image_reward(folders) -> dict:
    """Arguments of ImageReward."""
    tokenizer = tiny_models.bert_tokenizer(folders / "bert")
    return {"model": str(tiny_models.image_reward_folder(folders / "image-reward")), "tokenizer": str(tokenizer)}


@pytest.fixture(scope="session")
def qwen2(folders) -> str:
    return str(tiny_vlm.qwen2_folder(folders / "qwen2"))


@pytest.fixture(scope="session")
def hps_v3(folders, qwen2) -> dict:
    """Arguments of HPSv3: pictures of 40 tokens."""
    place = tiny_qwen_scorers.hps_v3_file(qwen2, folders / "hps-v3")
    return {"model": str(place), "base": qwen2, "pixels": 40 * 8 * 8, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="session")
def video_reward(folders, qwen2) -> dict:
    """Arguments of VideoReward."""
    place = tiny_qwen_scorers.video_reward_folder(qwen2, folders / "video-reward")
    return {"model": str(place), "base": qwen2, "video_fps": 8.0, "device": "cpu", "dtype": "float32"}
