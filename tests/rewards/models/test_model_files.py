"""Weights: found in folders and in the hub's cache, refused when they are not what they should be."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

from mmrl.rewards import RewardError, load
from mmrl.rewards.models.model_files import (
    ResolvedFile,
    find_file,
    find_weights,
    load_component,
    load_pretrained,
    load_tensors,
    torch_device,
    torch_dtype,
)
from tests.rewards.models.tiny_models import answers


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache of the hub, and a way to put folders into it as if they had been downloaded."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(name: str, *files: Path, commit: str = "c0ffee" * 6 + "beef", revision: str = "main") -> None:
        place = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (place / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / revision).write_text(commit)
        for file in files:
            shutil.copy(file, place / "snapshots" / commit / file.name)

    return put


def contents(folder: str, *without: str) -> list[Path]:
    return [path for path in sorted(Path(folder).iterdir()) if path.name not in without]


@pytest.mark.integration
def test_published_ids_load_from_the_hub_cache(hub, clip, siglip, hps, aesthetic, image_reward, tmp_path):
    """Each default id, in the layout of the published repository, without the network."""
    weights, head = ["model.safetensors", "config.json"], tmp_path / "aesthetic-model.pth"
    shutil.copy(aesthetic["head"], head)
    hub("openai/clip-vit-base-patch32", *contents(clip))
    hub("openai/clip-vit-large-patch14", *contents(clip))
    hub("trl-lib/ddpo-aesthetic-predictor", head)
    hub("google/siglip-so400m-patch14-384", *contents(siglip))
    hub("yuvalkirstain/PickScore_v1", *(Path(clip) / name for name in weights))
    hub("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", *contents(clip, "model.safetensors"))
    hub("laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", *contents(clip))
    hub("xswu/HPSv2", *contents(hps["model"]))
    hub("THUDM/ImageReward", *contents(image_reward["model"]))
    hub("google-bert/bert-base-uncased", *contents(image_reward["tokenizer"]))
    cases = {
        "clip_score": ({}, {"model": clip}, ["openai/clip-vit-base-patch32/model.safetensors"]),
        "siglip_score": ({}, {"model": siglip}, ["google/siglip-so400m-patch14-384/model.safetensors"]),
        "pickscore": ({}, {"model": clip}, ["yuvalkirstain/PickScore_v1/model.safetensors"]),
        "hps_v2": ({"architecture": hps["architecture"]}, hps, ["xswu/HPSv2/HPS_v2_compressed.pt"]),
        "hps_v21": ({"architecture": hps["architecture"]}, hps, ["xswu/HPSv2/HPS_v2.1_compressed.pt"]),
        "aesthetic": (
            {},
            aesthetic,
            [
                "openai/clip-vit-large-patch14/model.safetensors",
                "trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth",
            ],
        ),
        "image_reward": ({}, image_reward, ["THUDM/ImageReward/ImageReward.pt"]),
        "goal_contrast": (
            {"negative": "red"},
            {"negative": "red", "model": clip},
            ["laion/CLIP-ViT-bigG-14-laion2B-39B-b160k/model.safetensors"],
        ),
    }
    items = answers(3)
    for name, (from_hub, from_folder, labels) in cases.items():
        reward, local = load(name, **from_hub), load(name, **from_folder)
        np.testing.assert_array_equal(reward.score(items).values[name], local.score(items).values[name])
        assert [file.path for file in reward.weight_files()] == labels
        assert [f.sha256 for f in reward.weight_files()] == [f.sha256 for f in local.weight_files()]


@pytest.mark.integration
def test_open_clip_repositories_load_with_their_prefix(hub, open_clip_form):
    hub("laion/tiny", *contents(open_clip_form))
    reward, local = load("clip_score", model="hf-hub:laion/tiny"), load("clip_score", model=open_clip_form)
    np.testing.assert_array_equal(
        reward.score(answers(3)).values["clip_score"], local.score(answers(3)).values["clip_score"]
    )
    assert reward.weight_files()[0].path == "laion/tiny/open_clip_model.safetensors"


def test_revisions_are_pinned(hub, clip, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(clip, other)
    tensors = load_file(other / "model.safetensors")
    save_file({k: -v if k == "text_projection.weight" else v for k, v in tensors.items()}, other / "model.safetensors")
    (other / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    hub("one/clip", *contents(clip))
    hub("one/clip", *contents(str(other)), commit="badcafe0" * 5, revision="turned")
    items = answers(12)
    scored = [
        load("goal_contrast", model="one/clip", negative="red", revision=r).score(items) for r in (None, "turned")
    ]
    plain, turned = (output.values["goal_contrast"] for output in scored)
    np.testing.assert_allclose(plain, -turned, atol=1e-6)
    with pytest.raises(RewardError, match="one/clip"):
        load("clip_score", model="one/clip", revision="never")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("clip_score", {}),
        ("siglip_score", {}),
        ("pickscore", {}),
        ("hps_v2", {}),
        ("aesthetic", {}),
        ("image_reward", {}),
        ("vqa_score", {}),
        ("goal_baseline", {"baseline": "red"}),
    ],
)
def test_models_that_exist_nowhere_raise_before_scoring(hub, name, arguments):
    with pytest.raises(
        RewardError, match=r"There is no folder of that name, and the file is neither on the hub nor in its cache"
    ):
        load(name, **arguments)


def test_a_hub_that_gives_no_answer_gets_one_request(monkeypatch):
    import huggingface_hub

    requests = []

    def download(model, name, revision=None, local_files_only=False):
        requests.append(local_files_only)
        raise huggingface_hub.errors.LocalEntryNotFoundError(name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(RewardError, match="neither on the hub nor in its cache"):
        find_file("owner/name", ["a.safetensors", "b.bin", "c.json"])
    assert requests == [False, True, True]


def test_missing_paths_are_not_taken_for_hub_ids(tmp_path):
    for model in (str(tmp_path / "missing"), "./missing", "~/missing/clip", "one/two/three", "clip"):
        with pytest.raises(RewardError, match="is neither a folder or file on this machine nor a hub id"):
            load("clip_score", model=model)


def test_folders_without_weights_raise_with_their_content(clip, tmp_path):
    for path in contents(clip, "model.safetensors"):
        shutil.copy(path, tmp_path)
    with pytest.raises(RewardError, match=r"has no model.safetensors or .*; it has config.json, "):
        load("clip_score", model=str(tmp_path))


def test_folders_without_tokenizer_or_processor_raise(clip, tmp_path):
    """Without a vocabulary transformers makes a tokenizer of three tokens, and all prompts are one."""
    cases = {"tokenizer": "has no tokenizer.json or vocab.json", "preprocessor_config.json": "cannot be loaded"}
    for missing, message in cases.items():
        place = tmp_path / missing
        place.mkdir()
        for path in contents(clip):
            if not path.name.startswith(missing):
                shutil.copy(path, place)
        with pytest.raises(RewardError, match=rf"{message}"):
            load("clip_score", model=str(place))
        assert load("clip_score", model=str(place), processor=clip).name == "clip_score"


def test_sharded_and_pickled_weights_give_equal_scores(clip, tmp_path):
    from transformers import CLIPModel

    expected = load("clip_score", model=clip).score(answers(4)).values["clip_score"]
    pieces, old = tmp_path / "pieces", tmp_path / "old"
    for place in (pieces, old):
        place.mkdir()
        for path in contents(clip, "model.safetensors"):
            shutil.copy(path, place)
    CLIPModel.from_pretrained(clip).save_pretrained(pieces, max_shard_size="60KB")
    torch.save(load_file(Path(clip) / "model.safetensors"), old / "pytorch_model.bin")
    assert len(find_weights(str(pieces))) > 1 and [f.path.name for f in find_weights(str(old))] == ["pytorch_model.bin"]
    for place in (pieces, old):
        reward = load("clip_score", model=str(place))
        np.testing.assert_array_equal(reward.score(answers(4)).values["clip_score"], expected)
        assert len(reward.weight_files()) == len(find_weights(str(place)))


def test_missing_and_misshapen_tensors_raise(clip, tmp_path):
    shutil.copytree(clip, tmp_path / "clip")
    place = tmp_path / "clip" / "model.safetensors"
    tensors = load_file(place)
    save_file({k: v for k, v in tensors.items() if k != "text_projection.weight"}, place, {"format": "pt"})
    with pytest.raises(RewardError, match=r"the weights lack 1 tensors of a CLIPModel: text_projection.weight"):
        load("clip_score", model=str(tmp_path / "clip"))
    save_file(tensors | {"text_projection.weight": torch.zeros(7, 32)}, place, {"format": "pt"})
    with pytest.raises(RewardError, match="cannot be loaded"):
        load("clip_score", model=str(tmp_path / "clip"))
    place.write_bytes(b"no safetensors at all")
    with pytest.raises(RewardError, match="cannot be loaded"):
        load("clip_score", model=str(tmp_path / "clip"))


class Harm:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("harmed",)


def test_pickles_with_code_are_rejected_without_running_it(clip, hps, image_reward, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("HPS_v2_compressed.pt", "aesthetic-model.pth", "ImageReward.pt"):
        torch.save({"state_dict": Harm()}, tmp_path / file)
    shutil.copy(Path(image_reward["model"]) / "med_config.json", tmp_path)
    place = tmp_path / "clip"
    shutil.copytree(clip, place)
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(), protocol=2))
    for name, arguments in [
        ("hps_v2", hps | {"model": str(tmp_path)}),
        ("aesthetic", {"model": clip, "head": str(tmp_path)}),
        ("image_reward", image_reward | {"model": str(tmp_path)}),
        ("clip_score", {"model": str(place)}),
    ]:
        with pytest.raises(RewardError, match="cannot be loaded"):
            load(name, **arguments)
    assert not (tmp_path / "harmed").exists()
    torch.load(tmp_path / "ImageReward.pt", weights_only=False)  # the control: this one runs it
    assert (tmp_path / "harmed").exists()


def test_repository_code_is_never_run(clip, tmp_path):
    shutil.copytree(clip, tmp_path / "clip")
    config = json.loads((tmp_path / "clip" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoModel": "own.Own", "AutoConfig": "own.OwnConfig"}}
    (tmp_path / "clip" / "config.json").write_text(json.dumps(config))
    (tmp_path / "clip" / "own.py").write_text("raise SystemExit('run')")
    with pytest.raises(RewardError, match="cannot be loaded"):
        load("clip_score", model=str(tmp_path / "clip"))


def test_loading_never_prompts_to_run_remote_code(clip, tmp_path, monkeypatch):
    """transformers asks at a terminal, and runs it for whoever types y."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(clip, tmp_path / "clip")
    config = json.loads((tmp_path / "clip" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoModel": "own.Own", "AutoConfig": "own.OwnConfig"}}
    (tmp_path / "clip" / "config.json").write_text(json.dumps(config))
    (tmp_path / "clip" / "own.py").write_text("open('run', 'w').close()")
    requests = []
    monkeypatch.setattr("builtins.input", lambda *words: requests.append(words) or "y")
    for auto in (AutoModel, AutoConfig):
        with pytest.raises(RewardError, match="cannot be loaded"):
            if auto is AutoModel:
                load_pretrained(auto, str(tmp_path / "clip"), None, torch.float32)
            else:
                load_component(auto, str(tmp_path / "clip"), None)
    assert not requests and not (tmp_path / "run").exists()


def transformers_tokenizer(folder: str, clip: str, place: Path, **settings) -> Path:
    """An open_clip model, as published, whose tokenizer is one of transformers."""
    shutil.copytree(folder, place)
    for path in contents(clip):
        if path.name.startswith(("tokenizer", "special", "vocab", "merges")):
            shutil.copy(path, place)
    written = json.loads((place / "open_clip_config.json").read_text())
    written["model_cfg"]["text_cfg"] |= {"hf_tokenizer_name": "laion/words"} | settings
    (place / "open_clip_config.json").write_text(json.dumps(written))
    return place


def test_open_clip_tokenizers_are_downloaded(hub, open_clip_form, clip, tmp_path, monkeypatch):
    """Only the requested files of a hub repository are downloaded to the cache."""
    import huggingface_hub

    place = transformers_tokenizer(open_clip_form, clip, tmp_path / "whole")
    cache = tmp_path / "came"

    def download(model, name, revision=None, local_files_only=False):
        if not (place / name).is_file():
            raise huggingface_hub.errors.LocalEntryNotFoundError(name)
        cache.mkdir(exist_ok=True)
        return shutil.copy(place / name, cache / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    reward, local = load("clip_score", model="hf-hub:laion/words"), load("clip_score", model=str(place))
    np.testing.assert_array_equal(
        reward.score(answers(3)).values["clip_score"], local.score(answers(3)).values["clip_score"]
    )
    shutil.rmtree(cache)
    for path in place.glob("*"):
        if path.name in ("tokenizer.json", "vocab.json"):
            path.unlink()
    with pytest.raises(RewardError, match=r"no tokenizer.json or vocab.json"):
        load("clip_score", model="hf-hub:laion/words")


def test_open_clip_configurations_cannot_run_code(open_clip_form, clip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = transformers_tokenizer(
        open_clip_form, clip, tmp_path / "whole", tokenizer_kwargs={"trust_remote_code": True}
    )
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (place / "tokenizer_config.json").write_text(json.dumps(own))
    (place / "own.py").write_text("open('run', 'w').close()")
    with pytest.raises(RewardError, match="cannot be loaded"):
        load("clip_score", model=str(place))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("written", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[" * 9999])
def test_invalid_shard_lists_raise(written, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(written)
    with pytest.raises(RewardError, match=r"model.safetensors.index.json cannot be loaded"):
        find_weights(str(tmp_path))


def test_other_architectures_raise(clip, tmp_path):
    from transformers import CLIPVisionModel

    for path in contents(clip, "model.safetensors", "config.json"):
        shutil.copy(path, tmp_path)
    CLIPVisionModel.from_pretrained(clip).save_pretrained(tmp_path)
    with pytest.raises(RewardError, match="is a CLIPVisionModel; expected a CLIP or SigLIP"):
        load("clip_score", model=str(tmp_path))


def test_siglip_2_naflex_raises(tmp_path):
    from transformers import Siglip2Config, Siglip2Model

    tower = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    text = tower | dict(vocab_size=8, max_position_embeddings=4, projection_size=16, bos_token_id=0, eos_token_id=1)
    Siglip2Model(Siglip2Config(text_config=text, vision_config=tower | dict(patch_size=4))).save_pretrained(tmp_path)
    with pytest.raises(RewardError, match="is a Siglip2Model; expected a CLIP or SigLIP with a fixed image size"):
        load("siglip_score", model=str(tmp_path))


def test_files_without_named_tensors_raise(tmp_path):
    for content in ([torch.zeros(1)], {"epoch": 3}, {"state_dict": {"a": 1}}):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(RewardError, match="other content than named tensors"):
            load_tensors(ResolvedFile(tmp_path / "x.pt", "x.pt"))
    torch.save({"state_dict": {"a": torch.ones(2)}}, tmp_path / "x.pt")
    assert load_tensors(find_file(str(tmp_path), "x.pt"))["a"].tolist() == [1, 1]


def test_digests_change_with_the_file(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"one")
    before = find_file(str(tmp_path), "x.pt").weight_file()
    (tmp_path / "x.pt").write_bytes(b"other")
    after = find_file(str(tmp_path / "x.pt"), "any.pt").weight_file()
    assert before.path == after.path and before.sha256 != after.sha256


def test_unknown_devices_and_dtypes_raise():
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert torch_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(RewardError, match="device is 'gpu', which is unknown to torch"):
        torch_device("gpu")
    with pytest.raises(RewardError, match="dtype is 'half'; it must be one of float32, bfloat16, float16"):
        torch_dtype("half")


@pytest.mark.integration
def test_listing_and_describing_import_no_framework():
    """A name's class says its range, needs and source before torch is imported."""
    import subprocess
    import sys

    code = """
import sys
from mmrl.rewards.core.registry import describe
for name in ("clip_score", "siglip_score", "pickscore", "hps_v2", "hps_v21", "aesthetic", "image_reward",
             "vqa_score", "goal_baseline", "goal_contrast", "anchor_margin"):
    assert name in describe(name)
assert not {"torch", "transformers", "open_clip", "torchvision"} & set(sys.modules), "loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
