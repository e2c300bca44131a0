"""Runs of the embedded vision-language model, whole: tasks mixed, resumed, with adapters, offline and online."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.workflows.train import train as train_run
from mmrl_shapeworld import splits
from mmrl_shapeworld.shipped_models import VLM

SHORT = (
    "data.groups=4",
    "data.group_size=4",
    "data.validation=shapeworld:vlm-development",
    "training.iterations=2",
    "evaluation.prompts=8",
    "run.display=quiet",
    "run.pictures=8",
)
BLIND = ("data.validation=null", "evaluation={}")  # looking at the policy decides nothing
STEADY = ("optimizer.lr=3e-3", "optimizer.schedule=constant")  # so that a run may be made longer when it is resumed


def train(folder: Path, *overrides: str) -> Path:
    return train_run(load_config("shapes-vlm", [*SHORT, f"run.dir={folder}", *overrides]))


def metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("vlm") / "run", "data.groups=8", "training.save_every=1", *STEADY)


def test_run_mixes_modalities_and_reports_each_source(run):
    sources = {"grounding", "detection", "counting", "ocr", "chart", "puzzle", "video-qa", "math"}
    rows = metrics(run)
    seen = [{name.partition("/")[2] for name in row if name.startswith("reward_by_source/")} for row in rows]
    assert seen[0] | seen[1] <= sources and len(seen[0] | seen[1]) > 5
    assert len({name for row in rows for name in row if name.startswith("reward/")}) > 6
    assert all(row["replay_gap"] < 1e-4 for row in rows)
    first, last = metrics(run, "evaluation")
    for prefix in ("evaluation_by_source/", "greedy_evaluation_by_source/"):
        assert {name.removeprefix(prefix) for name in last if name.startswith(prefix)} == sources
    assert first["evaluation/total"] != last["evaluation/total"]
    assert not [name for name in last if name.startswith("evaluation_failed/")]


def test_report_has_images_answers_and_curves_by_source(run):
    page = (run / "report.html").read_text()
    for source in ("grounding", "video-qa", "math"):
        assert source in page
    assert "data:image/png;base64," in page
    assert (run / "greedy" / "evaluations" / "step-2.jsonl").is_file()


def test_full_run_saves_a_model_that_transformers_loads(run):
    checkpoint = run / "checkpoints" / "step-2"
    trained = AutoModelForImageTextToText.from_pretrained(checkpoint).state_dict()
    assert AutoProcessor.from_pretrained(checkpoint).chat_template
    base = AutoModelForImageTextToText.from_pretrained(VLM).state_dict()
    moved = [name for name, value in trained.items() if not torch.equal(value, base[name])]
    assert any("visual" in name for name in moved) and any("language_model" in name for name in moved)


@pytest.mark.integration
def test_resumed_run_equals_an_uninterrupted_one(run, tmp_path):
    changes = ("data.groups=8", "training.save_every=1", "training.iterations=1")
    again = train(tmp_path / "again", *changes, *STEADY, *BLIND)
    train_run(load_config(str(again / "config.yaml"), ["training.iterations=2"]), resume=again)
    expected, came = (load_file(each / "checkpoints/step-2/model.safetensors") for each in (run, again))
    assert all(torch.equal(expected[name], came[name]) for name in expected)


@pytest.mark.integration
def test_adapters_are_saved_for_peft(tmp_path):
    run = train(tmp_path / "lora", "policy.train=lora", "policy.lora.rank=4", *BLIND)
    model = AutoModelForImageTextToText.from_pretrained(VLM)
    loaded = PeftModel.from_pretrained(model, str(run))
    layers = [name for name, _ in loaded.named_modules() if name.endswith("lora_A.default")]
    assert any(".visual." in name for name in layers) and any(".language_model." in name for name in layers)
    assert any(p.abs().sum() > 0 for name, p in loaded.named_parameters() if "lora_B" in name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, sign",
    [
        (["algorithm={name: sft}"], "loss"),
        pytest.param(["algorithm={name: rejection_sft}"], "loss", marks=pytest.mark.slow),
        pytest.param(
            ["algorithm={name: gspo}", "data.group_sampling={name: dynamic, max_rounds: 2}"],
            "clip_fraction",
            marks=pytest.mark.slow,
        ),
        (["algorithm={name: cispo, kl: {coef: 0.01}}", "data.replay={name: selective}"], "kl"),
        (["algorithm={name: dapo}", "data.group_sampling={name: adaptive, max_rounds: 2}"], "clip_fraction"),
        (["algorithm={name: topr}", "data.demonstrations={share: 0.5}"], "demonstrations/rows"),
        pytest.param(
            ["algorithm={name: grao}", "data.demonstrations={share: 1.0}"],
            "demonstrations/rows",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["algorithm={name: a_lol, values: 1}", "data.path=shapeworld:caption-first"],
            "stored/kept_share",
            marks=pytest.mark.slow,
        ),
        (["pretraining={iterations: 1}", "data.weighting={name: difficulty}"], "stage"),
        (["data.prompts={name: variance_aware}", "data.replay={name: success}"], "reward/total"),
    ],
)
def test_every_algorithm_trains_a_vlm(overrides, sign, tmp_path):
    run = train(tmp_path / "run", *BLIND, *overrides)
    last = metrics(run)[-1]
    assert sign in last
    assert last["replay_gap"] < 1e-4


@pytest.mark.integration
def test_preference_pairs_train(tmp_path):
    samples = [s for s in splits.samples("vlm-train")[:64] if s.source in ("counting", "video-qa")]
    pairs = tmp_path / "pairs.jsonl"
    write_samples(
        [replace(s, chosen=s.demonstration, rejected="nothing", demonstration=None, rewards=()) for s in samples], pairs
    )
    run = train(
        tmp_path / "run", "algorithm={name: dpo}", f"data.path={pairs}", *BLIND,
        "training.iterations=4", "optimizer.lr=1e-3",
    )  # fmt: skip
    accuracy = [row["preference_accuracy"] for row in metrics(run)]
    assert accuracy[-1] == 1.0
