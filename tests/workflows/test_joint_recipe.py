"""The recipes of joint GRPO, as they stand, train an iteration of the tiny models of their classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.build.config_checks import check
from mmrl.build.model_references import resolve_model
from mmrl.config.loading.load import dump_config, load_config
from mmrl.config.train import TrainConfig
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.evaluation.comparison import SubjectStore
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.results import Evaluation
from mmrl.training.run.run_folder import create_run_folder
from mmrl.workflows.compare.comparison import CompareRequest, compare
from mmrl.workflows.compare.entries import find_models, share_settings
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines
from tests.understanding import tiny_vlms

REWARDS = """
def user_text(image, prompt):
    return image.convert('L').getpixel((0, 0)) / 255 + len(prompt)

def dark(image, prompt):
    return -image.convert('L').getpixel((9, 9)) / 255
"""


def joint_config(folder: Path, recipe: str, painter: str, samples: list[Sample], *words: str) -> TrainConfig:
    """Return the configuration of a recipe with tiny models, whose first reward is the length of the user's text."""
    tiny_vlms.build("qwen2_5_vl", folder / "writer")
    tiny_pipelines.build(painter).save_pretrained(folder / "painter")
    write_samples(samples, folder / "data.jsonl")
    (folder / "reward.py").write_text(REWARDS)
    sizes = tiny_pipelines.PIPELINES[painter].sampling
    words = (
        f"policy.model={folder / 'writer'}",
        "policy.dtype=float32",
        "policy.gradient_checkpointing=false",
        f"models.painter.model={folder / 'painter'}",
        "models.painter.lora.rank=2",
        *(f"models.painter.sampling.{name}={sizes[name]}" for name in ("height", "width") if name in sizes),
        "models.painter.sampling.steps=3",
        "sampling.max_new_tokens=4",
        "training.iterations=1",
        f"run={{dir: '{folder / 'run'}', display: quiet}}",
        *words,
    )
    config = load_config(f"{recipe}-qwen25-vl-3b", words)
    check(config)
    return config


def rewards(folder: Path, *names: str) -> str:
    named = [f"{{name: '{folder / 'reward.py'}:{name}'}}" for name in names]
    return f"rewards=[{', '.join(named)}]"


def trained_row(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "train"]
    return row


@pytest.mark.integration
@pytest.mark.parametrize(
    ("recipe", "names"),
    [pytest.param("unigrpo", ["user_text"], marks=pytest.mark.slow), ("parrot", ["user_text", "dark"])],
)
def test_qwen_writes_what_stable_diffusion_draws(recipe: str, names: list[str], tmp_path: Path):
    messages = (
        {"role": "system", "content": "Write it in full."},
        {"role": "user", "content": "a birthday"},
    )
    samples = [Sample(id=f"s{n}", prompt="", messages=messages) for n in range(2)]
    data = tmp_path / "data.jsonl"
    words = (
        rewards(tmp_path, *names),
        f"data={{path: '{data}', groups: 2, group_size: 2, micro_batch: 4, validation: '{data}'}}",
    )
    config = joint_config(tmp_path, recipe, "sd3", samples, *words)
    run = train(config)
    row = trained_row(run)
    assert row["grad_norm"] > 0 and row["painter/grad_norm"] > 0 and row["kl"] == 0 == row.get("painter/kl", 0)
    assert 10 <= row["reward/user_text"] <= 11  # the user's own text is judged, of ten letters
    assert all(Evaluation.load(run, step) for step in (0, 1))
    evaluated = config.evaluation
    request = CompareRequest(
        models=(str(run),),
        data=config.data.validation,
        draws=evaluated.samples,
        batch=evaluated.batch,
        seed=evaluated.seed,
        out=tmp_path / "out",
    )
    done = compare(request, ComparisonDisplay(print))
    base, last = done.result.subjects.values()
    for subject, step in ((base, 0), (last, 1)):
        store, expected = SubjectStore(done.folder, subject.file), Evaluation.load(run, step)
        scores = [row.scores["user_text"] for row in store.lines()]
        np.testing.assert_array_equal(scores, expected.values["user_text"])
        for row, picture in enumerate(expected.images):
            np.testing.assert_array_equal(np.asarray(store.picture(row, 0)), np.asarray(picture))
    assert done.result.subjects.keys() == {f"{run}@base", str(run)} and last.drift.value > 0


def test_painters_that_draw_by_other_settings_are_named(tmp_path: Path):
    for steps in (3, 4):
        config = load_config("unigrpo-qwen25-vl-3b", [f"models.painter.sampling.steps={steps}"])
        create_run_folder(tmp_path / f"of-{steps}", dump_config(config))
    names = [f"{tmp_path / name}@base" for name in ("of-3", "of-4")]
    first, other = (resolve_model(name) for name in names)
    (note,) = share_settings(first, find_models(names, "vlm", bases=False), None).notes
    assert (
        note
        == f"{other.name} draws with steps 4, and {first.name} with steps 3: each run keeps the settings of its painter"
    )
    assert share_settings(first, find_models(names[:1], "vlm", bases=False), None).notes == ()


@pytest.mark.integration
def test_qwen_thinks_and_instruct_pix2pix_edits(tmp_path: Path):
    for number in range(2):
        Image.new("RGB", (56, 56), (200, 90 * number, 20)).save(tmp_path / f"{number}.png")
    messages = (
        {"role": "system", "content": "Plan the edit."},
        {"role": "user", "content": "remove it"},
    )
    samples = [Sample(id=f"s{n}", messages=messages, images=(str(tmp_path / f"{n}.png"),)) for n in range(2)]
    words = (
        rewards(tmp_path, "user_text", "dark"),
        f"data={{path: '{tmp_path / 'data.jsonl'}', groups: 2, group_size: 4, micro_batch: 8}}",
        "models.painter.sampling.window={size: 1}",
    )
    row = trained_row(train(joint_config(tmp_path, "thinkrl-edit", "sd15_pix2pix", samples, *words)))
    assert row["grad_norm"] > 0 and row["painter/grad_norm"] > 0
    assert 9 <= row["reward/user_text"] <= 10  # the user's own request is judged, of nine letters
