"""Folders of tiny models, each written once a session."""

from pathlib import Path

import pytest

from tests.rewards.models import tiny_models


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
