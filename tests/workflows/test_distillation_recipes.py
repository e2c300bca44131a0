"""The recipes of on-policy distillation, as they stand, train an iteration of the tiny models of their classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmrl.build.config_checks import check
from mmrl.config.loading.load import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines
from tests.understanding import tiny_vlms
from tests.understanding.media import as_png, picture


def trained_row(run: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (found,) = [row for row in rows if row["kind"] == "train"]
    return found


@pytest.mark.integration
def test_opd_of_a_vision_language_model(tmp_path: Path):
    tiny_vlms.build("qwen2_5_vl", tmp_path / "student")
    tiny_vlms.build("qwen2_5_vl", tmp_path / "teacher")
    samples = [
        Sample(id=f"s{n}", prompt="What?", images=(as_png(picture(n)),), answer="A", task="math") for n in range(2)
    ]
    write_samples(samples, tmp_path / "data.jsonl")
    words = [
        f"policy.model={tmp_path / 'student'}",
        "policy.dtype=float32",
        "policy.gradient_checkpointing=false",
        f"models={{teacher: {{model: '{tmp_path / 'teacher'}', offload: true}}}}",
        "sampling.max_new_tokens=4",
        f"data={{path: '{tmp_path / 'data.jsonl'}', groups: 2, group_size: 2}}",
        "training.iterations=1",
        f"run={{dir: '{tmp_path / 'run'}', display: quiet}}",
    ]
    config = load_config("opd-qwen25-vl-3b", words)
    check(config)
    row = trained_row(train(config))
    assert row["reverse_kl"] == pytest.approx(0, abs=1e-5) and row["gated_share"] == 1  # equal weights
    assert row["grad_norm"] < 1e-4 < config.optimizer.max_grad_norm


@pytest.mark.integration
def test_diffusion_opd_of_two_teachers(tmp_path: Path):
    tiny_pipelines.build("sd3").save_pretrained(tmp_path / "model")
    sizes = tiny_pipelines.PIPELINES["sd3"].sampling
    sampling = {name: value for name, value in sizes.items() if name in ("height", "width", "max_sequence_length")}
    made = tiny_pipelines.samples("sd3", tmp_path)[:2]
    sources = ("composition", "text")
    write_samples(
        [Sample(id=f"s{n}", prompt=each.prompt, source=sources[n]) for n, each in enumerate(made)],
        tmp_path / "data.jsonl",
    )
    (tmp_path / "reward.py").write_text("def bright(image):\n    return image.convert('L').getpixel((0, 0)) / 255\n")
    words = [
        f"policy={{model: '{tmp_path / 'model'}', dtype: float32, lora: {{rank: 2}}}}",
        *(f"models.{name}.model={tmp_path / 'model'}" for name in sources),
        *(f"sampling.{name}={value}" for name, value in sampling.items()),
        "sampling.steps=2",
        f"rewards=[{{name: '{tmp_path / 'reward.py'}:bright'}}]",
        f"data={{path: '{tmp_path / 'data.jsonl'}', groups: 2, group_size: 2, micro_batch: 4}}",
        "training.iterations=1",
        f"run={{dir: '{tmp_path / 'run'}', display: quiet}}",
    ]
    config = load_config("diffusion-opd-sd35", words)
    check(config)
    row = trained_row(train(config))
    assert row["distance"] == 0 and row["replay_gap"] <= 1e-6 and row["grad_norm"] == 0  # the teachers are the student
