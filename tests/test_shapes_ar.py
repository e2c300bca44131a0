"""Runs of the embedded autoregressive generator, whole: online and offline, resumed, with adapters, guided, sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmrl.build.config_checks import check
from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.workflows.generate_images import InferenceOptions, generate_images, sample_images
from mmrl.workflows.train import train as train_run
from mmrl_shapeworld import splits

SHORT = (
    "data.groups=3",
    "data.group_size=4",
    "data.validation=shapeworld:development",
    "data.heldout=null",
    "training.iterations=2",
    "evaluation.prompts=6",
    "evaluation.rewards=[]",
    "run.display=quiet",
    "run.pictures=4",
)
STEADY = ("optimizer.lr=3e-3", "optimizer.schedule=constant")  # so that a run may be made longer when it is resumed
BLIND = ("data.validation=null", "evaluation={}")


def train(folder: Path, *overrides: str) -> Path:
    return train_run(load_config("shapes-ar", [*SHORT, f"run.dir={folder}", *overrides]))


def metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ar") / "run"
    return train(folder, "training.save_every=1", "evaluation.diversity_prompts=2", "evaluation.greedy=true", *STEADY)


def test_image_token_run_is_scored_reported_and_evaluated(run):
    assert all(row["replay_gap"] < 1e-4 and row["entropy"] > 0 for row in metrics(run))
    first, last = metrics(run, "evaluation")
    assert {"evaluation/shapeworld_strict", "greedy_evaluation/shapeworld", "evaluation/diversity"} <= last.keys()
    assert first["evaluation/total"] != last["evaluation/total"]
    assert "data:image/png;base64," in (run / "report.html").read_text()
    assert "sample_images" in (run / "README.md").read_text()


@pytest.mark.slow
def test_resumed_run_equals_an_uninterrupted_one(run, tmp_path):
    again = train(tmp_path / "again", "training.save_every=1", *STEADY, "training.iterations=1")
    train_run(load_config(str(again / "config.yaml"), ["training.iterations=2"]), resume=again)
    file = "checkpoints/step-2/language_model/model.safetensors"
    expected, came = (load_file(each / file) for each in (run, again))
    assert all(torch.equal(expected[name], came[name]) for name in expected)


@pytest.mark.integration
def test_sample_images_uses_the_trained_weights(run):
    (trained,), (base,) = (sample_images(str(run), ["a red circle"], 1, 0, base=base) for base in (False, True))
    assert trained.size == base.size == (32, 32) and trained.tobytes() != base.tobytes()
    assert len(sample_images(str(run), ["a red circle"], 2, 0, guidance=2.0)) == 2
    with pytest.raises(ConfigError, match=r"--steps: .* draws token by token"):
        sample_images(str(run), ["a red circle"], 1, 0, steps=4)
    for options in (InferenceOptions(rlg=0.0), InferenceOptions(lora_strength=0.0)):
        with pytest.raises(ConfigError, match=r"it steers denoising, and .* draws token by token"):
            generate_images(str(run), ["a red circle"], 1, 0, options=options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, sign",
    [
        (["policy.train=lora", "sampling.guidance_scale=2.0", "algorithm={name: grpo, kl: {coef: 0.02}}"], "kl"),
        pytest.param(["algorithm={name: dr_grpo}"], "clip_fraction", marks=pytest.mark.slow),
        (["algorithm={name: gspo}", "data.group_sampling={name: dynamic, max_rounds: 2}"], "clip_fraction"),
        pytest.param(
            ["algorithm={name: cispo}", "data.replay={name: selective}"], "clip_fraction", marks=pytest.mark.slow
        ),
        pytest.param(
            ["algorithm={name: dapo}", "data.micro_batch=6", "training.updates=2"],
            "clip_fraction",
            marks=pytest.mark.slow,
        ),
        (["algorithm={name: rejection_sft}"], "loss"),
    ],
)
def test_every_algorithm_trains_an_image_token_model(overrides, sign, tmp_path):
    last = metrics(train(tmp_path / "run", *BLIND, *overrides))[-1]
    assert sign in last and last["replay_gap"] < 1e-4


@pytest.mark.integration
def test_preference_pairs_of_images_train(tmp_path):
    from tools.shapeworld_pretrain.pictures import rendered, to_pictures

    captions, pixels = rendered(4, seed=7)
    pictures = to_pictures(pixels)
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    samples = [
        Sample(str(n), prompt=str(caption), chosen=str(tmp_path / f"{n}.png"), rejected=str(tmp_path / f"{n - 1}.png"))
        for n, caption in enumerate(captions)
        if n
    ]
    write_samples(samples, tmp_path / "pairs.jsonl")
    run = train(
        tmp_path / "run", *BLIND, "algorithm={name: dpo}", f"data.path={tmp_path / 'pairs.jsonl'}", "rewards=[]",
        "training.iterations=4", "optimizer.lr=1e-3",
    )  # fmt: skip
    assert metrics(run)[-1]["preference_accuracy"] == 1.0


def test_invalid_runs_are_rejected_before_loading_a_model():
    for override, message in (
        ("sampling.temperature=0", r"sampling\.temperature: at 0"),
        ("algorithm={name: diffusion_nft}", r"ImageTokenPolicy"),
        ("rewards=[]", r"rewards: name at least one"),
    ):
        with pytest.raises(ConfigError, match=message):
            check(load_config("shapes-ar", [override]))


def test_captions_are_tokenized_by_word():
    from mmrl_shapeworld.image_ar import SPECIAL, UNKNOWN, tokenizer

    words = tokenizer()
    for sample in splits.samples("train")[:300] + splits.samples("heldout"):
        ids = words(sample.prompt)["input_ids"]
        assert len(ids) == 1 + len(sample.prompt.split()) and SPECIAL.index(UNKNOWN) not in ids
