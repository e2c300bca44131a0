"""The shipped pipelines for editing, filling holes, video and the UNet: that they load anywhere, draw, and train."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline

from mmrl.build.policies import resolve_model_path
from mmrl.config import ConfigError, load_config
from mmrl.config.policy import PolicyConfig
from mmrl.rewards.core import registry
from mmrl.rewards.core.reward_io import reward_input
from mmrl.workflows.train import train
from mmrl_shapeworld import shipped_models, splits, task_splits, unets
from tools.shapeworld_pretrain import picture_tasks, unet, video

CLASSES = {
    "sd3": "StableDiffusion3Pipeline",
    "unet": "StableDiffusionPipeline",
    "edit": "StableDiffusionInstructPix2PixPipeline",
    "inpaint": "StableDiffusionInpaintPipeline",
    "masks": "StableDiffusionInpaintPipeline",
    "video": "AnimateDiffPipeline",
    "swap": "WanVACEPipeline",
}
OTHERS = [name for name in CLASSES if name != "sd3"]
SKILLS = {
    "unet": unet.skill,
    "edit": partial(picture_tasks.skill, "edit"),
    "inpaint": partial(picture_tasks.skill, "inpaint"),
    "masks": partial(picture_tasks.skill, "masks"),
    "video": video.skill,
}
RECIPES = {"unet": "shapes-ddpo", "edit": "shapes-edit", "inpaint": "shapes-inpaint", "video": "shapes-video"}


@pytest.fixture(scope="module")
def pipe():
    loaded = {}

    def load(name):
        if name not in loaded:
            loaded[name] = DiffusionPipeline.from_pretrained(shipped_models.GENERATORS[name])
            loaded[name].set_progress_bar_config(disable=True)
        return loaded[name]

    return load


def test_model_names_find_folders_and_unknown_ones_raise():
    for name, folder in shipped_models.GENERATORS.items():
        assert resolve_model_path(PolicyConfig(model=f"shapeworld:{name}")).model == str(folder)
        index = json.loads((folder / "model_index.json").read_text())
        assert index["_class_name"] == CLASSES[name]
    assert resolve_model_path(PolicyConfig(model="shapeworld")).model == str(shipped_models.GENERATORS["sd3"])
    assert resolve_model_path(PolicyConfig(model="other/model")).model == "other/model"
    with pytest.raises(ConfigError, match=r"policy.model: no pipeline shapeworld:vidoe ships: choose .*:inpaint"):
        resolve_model_path(PolicyConfig(model="shapeworld:vidoe"))


@pytest.mark.parametrize("name", OTHERS)
def test_weights_are_small_float16_safetensors(name):
    files = [path for path in shipped_models.GENERATORS[name].rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".safetensors"}
    assert sum(path.stat().st_size for path in files) < 4.5e6


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", ["unet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("edit", "inpaint", "masks", "video"))]
)
def test_base_has_medium_skill(name, pipe):
    """Neither hopeless nor done: reinforcement learning has room, and something to reinforce."""
    strict, score = SKILLS[name](pipe(name), 64)
    least = (0.01, 0.3) if name == "video" else (0.1, 0.4)  # five frames have to be right at once
    assert least[0] < strict < 0.85
    assert score > least[1]


@pytest.mark.slow
def test_sixteen_films_of_the_base_are_right_in_part(pipe):
    """The same in a quarter of the time, without the share of films that are right in every frame."""
    strict, score = video.skill(pipe("video"), 16)
    assert strict < 0.85 and score > 0.25  # blank and random films score 0


def test_half_precision_weights_load_unchanged(pipe):
    for module in (pipe("unet").unet, pipe("edit").unet):
        assert all(p.dtype == torch.float32 and torch.equal(p, p.half().float()) for p in module.parameters())


def test_widened_unet_starts_as_the_narrow_one(pipe):
    narrow = pipe("unet").unet
    wide = unets.widened(narrow, 9).eval()
    x, extra = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 8, 8)
    condition = torch.randn(2, 12, 64)
    with torch.no_grad():
        before, after = narrow(x, 500, condition).sample, wide(torch.cat([x, extra], dim=1), 500, condition).sample
    torch.testing.assert_close(after, before)


@pytest.mark.integration
@pytest.mark.parametrize("split", task_splits.SPLITS)
def test_splits_have_their_size_and_are_deterministic(split):
    found = splits.samples(split)
    assert len(found) == task_splits.SPLITS[split][1] == len({sample.id for sample in found})
    assert found == splits.samples(split)


@pytest.mark.parametrize("task", ["edit", "inpaint"])
def test_splits_share_no_image(task):
    pictures = [{s.conditions["image"] for s in splits.samples(f"{task}-{part}")} for part in ("train", "validation")]
    assert not pictures[0] & pictures[1]


def test_unknown_splits_raise_with_the_known_ones():
    with pytest.raises(KeyError, match="edit-validation"):
        splits.samples("edit-valid")


@pytest.mark.integration
@pytest.mark.parametrize("name", ["edit", "inpaint", "video"])
def test_recipe_trains_one_update_with_exact_replay(name, tmp_path):
    """Two rows of one prompt, one update: exact replay, and a gradient."""
    steps = [] if name == "video" else ["sampling.window={size: 1, high: 3}"]
    batch = ["data.groups=1", "data.group_size=4", f"data.micro_batch={4}", "sampling.steps=4", "data.validation=null"]
    loop = [
        "training.iterations=1",
        "training.epochs=1",
        "training.updates=1",
        f"run.dir={tmp_path / 'run'}",
        "run.display=quiet",
    ]
    run = train(load_config(RECIPES[name], [*steps, *batch, *loop]))
    (trained,) = [
        row for line in (run / "metrics.jsonl").read_text().splitlines() if (row := json.loads(line))["kind"] == "train"
    ]
    assert trained["replay_gap"] <= 1e-6
    assert 0 <= trained[f"reward/shapeworld_{name}"] <= 1
    assert np.isfinite(trained["grad_norm"])


@pytest.mark.parametrize("name", ["edit", "inpaint", "video"])
def test_rewards_are_found_by_name_and_lie_in_0_to_1(name):
    from PIL import Image

    from mmrl.data.media.decode import load_image

    sample = splits.samples(f"{name}-development")[0]
    reward = registry.load(f"shapeworld_{name}")
    blank = Image.new("RGB", (32, 32), (245, 245, 245))
    made = [blank] * 5 if name == "video" else load_image(sample.conditions["image"])
    output = reward.score([reward_input(sample, made, 0, "0")])
    assert output.status[reward.name] == ["ok"] and 0 <= output.values[reward.name][0] <= 1
    assert f"{reward.name}_strict" in output.values
