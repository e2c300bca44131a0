"""Each recipe in configs/generation, as it stands, trains one iteration of the tiny pipeline of its class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from diffusers import DiffusionPipeline

from mmrl.config import list_recipes, load_config
from mmrl.data.jsonl import write_samples
from mmrl.generation.memory.architecture import find_architecture
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines as tiny

TINY = {
    "flux2-klein-lora": "flux2_klein",
    "flux-dev-lora": "flux",
    "flux-kontext-dev-lora": "flux_kontext",
    "hunyuan-video15-lora": "hunyuan_video_15",
    "ltx2-lora": "ltx2",
    "qwen-image-lora": "qwen_image",
    "sd15-inpaint-lora": "sd15_inpaint_9_channels",
    "sd15-lora": "sd15",
    "sd35-medium-lora": "sd3",
    "sdxl-lora": "sdxl",
    "wan21-1-3b-lora": "wan",
    "wan22-a14b-lora": "wan22",
    "z-image-lora": "z_image",
}
"""By recipe, its pipeline made small."""

DAILY = ("flux-kontext-dev-lora", "qwen-image-lora", "sd15-inpaint-lora", "sd35-medium-lora", "wan22-a14b-lora")
"""Recipes of every day: an edit, a masked picture, noise and flow, two denoisers and a video."""

ROWS = {"hunyuan-video15-lora": 1}
"""The rows of a call in recipes that do not allow two; the recipe gives the reason."""

REWARD = """
from PIL import ImageStat


def brightness(image=None, video=None):
    return ImageStat.Stat((image or video[0]).convert("L")).mean[0] / 255
"""
"""A reward file: the brightness of the first image in [0, 1]."""


def test_every_recipe_has_its_tiny_pipeline():
    recipes = [recipe for recipe in list_recipes() if recipe.path.parent.name == "generation"]
    assert {recipe.name for recipe in recipes} == TINY.keys()
    for recipe in recipes:
        model = load_config(recipe.name).policy.model
        assert find_architecture(model).index["_class_name"] == tiny.PIPELINES[TINY[recipe.name]].pipeline


@pytest.mark.integration
@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[pytest.mark.slow] * (name not in DAILY)) for name in sorted(TINY)]
)
def test_recipe_trains_one_iteration(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", loads_small(tiny.PIPELINES[TINY[recipe]].attributes))
    config = load_config(recipe, small(recipe, tmp_path))
    run = train(config)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (trained,) = [row for row in rows if row["kind"] == "train"]
    assert trained["replay_gap"] <= 1e-6
    assert trained["grad_norm"] > 0
    assert 0 < trained["reward/total"] < 1
    assert list(run.glob("**/pytorch_lora_weights.safetensors"))


def loads_small(attributes: Mapping[str, Any]) -> Callable[..., DiffusionPipeline]:
    """`from_pretrained`, and the lengths that a pipeline's class fixes in its code, which no file can hold."""
    load = DiffusionPipeline.from_pretrained

    def loaded(*args: Any, **kwargs: Any) -> DiffusionPipeline:
        pipeline = load(*args, **kwargs)
        for name, value in attributes.items():
            setattr(pipeline, name, value)
        return pipeline

    return loaded


def small(recipe: str, folder: Path) -> list[str]:
    """Overrides: sizes and lengths of the tiny pipeline, one iteration, one process on a CPU; all else as published."""
    name = TINY[recipe]
    published, sizes = load_config(recipe).sampling, tiny.PIPELINES[name].sampling
    tiny.build(name).save_pretrained(folder / "model")
    write_samples(tiny.samples(name, folder), folder / "data.jsonl")
    (folder / "reward.py").write_text(REWARD)
    window, rows = published.window, ROWS.get(recipe, 2)
    changes = {
        "policy.model": str(folder / "model"),
        "policy.dtype": "float32",
        "policy.device": "cpu",
        "policy.lora.rank": 2,
        "rewards.0.name": f"{folder / 'reward.py'}:brightness",
        "data.path": str(folder / "data.jsonl"),
        "data.groups": 2,
        "data.group_size": 2,
        "data.micro_batch": rows,
        "training.iterations": 1,
        "training.updates": 1,
        "run.dir": str(folder / "run"),
        "run.display": "quiet",
        "sampling.steps": 1 + max(3, window.high or 0, window.size or 0),
        "sampling.pipeline_args": {**published.pipeline_args, **sizes.get("pipeline_args", {})},
        **{f"sampling.{key}": sizes[key] for key in ("height", "width", "num_frames") if key in sizes},
    }
    return [
        f"{key}={yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()}" for key, value in changes.items()
    ]
