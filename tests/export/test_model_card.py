"""The folder and the card of an export: nothing is overwritten or left behind, and the card says what the run shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from diffusers import DiffusionPipeline
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.errors import ConfigError
from mmrl.export.export import export
from mmrl_shapeworld.shipped_models import PIPELINE
from tests.export.trained_runs import LORA, STEP, evaluated, trained_run

SETTINGS = {
    "rewards": [{"name": "redness", "weight": 2.0}],
    "evaluation": {"rewards": ["held"]},
    "run": {"dir": "/home/ann/runs/a"},
    "sampling": {"steps": 2, "pipeline_args": {"max_sequence_length": 1}},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A LoRA run of the shipped generator, and its policy."""
    return trained_run(
        tmp_path_factory.mktemp("trained") / "dots", SETTINGS | {"policy": {"model": "shapeworld", **LORA}}
    )


@pytest.fixture
def make_run(trained, tmp_path):
    """A copy of it, with some of its configuration changed."""

    def make(**changes):
        run = tmp_path / "dots"
        shutil.copytree(trained[0], run)
        config = yaml.safe_load((run / "config.yaml").read_text())
        for path, value in changes.items():
            *above, last = path.split("__")
            place = config
            for key in above:
                place = place[key]
            place[last] = value
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        return run

    return make


def readme(run: Path, out: Path, **how) -> str:
    export(str(run), out, lora_only=True, **how)
    return (out / "README.md").read_text(encoding="utf-8")


def test_model_card_front_matter_is_valid_for_the_hub(make_run, tmp_path):
    run = make_run(policy__model="org/base", policy__revision="abc")
    data = ModelCard(readme(run, tmp_path / "out", repository="ann/dots")).data
    assert (data.base_model, data.base_model_relation, data.library_name) == ("org/base", "adapter", "diffusers")
    assert {"mmrl", "reinforcement-learning", "grpo", "lora"} == set(data.tags)
    text = (tmp_path / "out" / "README.md").read_text()
    assert 'from_pretrained("org/base", revision="abc", dtype=torch.float32)' in text
    assert 'load_lora_weights("ann/dots")' in text and "https://arxiv.org/abs/2402.03300" in text


def test_model_card_describes_local_bases_without_folders(make_run, tmp_path):
    run = make_run(policy__model="/home/ann/models/base", data__path="/home/ann/secret/train.jsonl")
    text = readme(run, tmp_path / "out")
    assert "base_model" not in text and "Its base is a local folder, `base`" in text and "`train.jsonl`" in text
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(b"/home/ann" in content for content in written)
    assert yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())["rewards"][0]["weight"] == 2.0


@pytest.mark.parametrize(
    ("half", "sentence"), [(0.2, "redness rose while the held-out held fell by 0.2"), (0.7, "did not diverge")]
)
def test_model_card_results_have_intervals_and_state_divergence(half, sentence, make_run, tmp_path):
    run = make_run()
    evaluated(run, 0, trained=0.4, observed=0.4, pictures=2)
    evaluated(run, STEP, trained=0.6, observed=half, pictures=2)
    text = readme(run, tmp_path / "out")
    assert sentence in text and "| redness | trained | 0." in text and "| held | held out | 0." in text
    row = next(line for line in text.splitlines() if line.startswith("| redness"))
    assert row.split("|")[5].strip().startswith("+0.") and " to +0." in row and row.endswith("| 40 |")
    for name in ("curves.svg", "before_after.png"):
        assert f"({name})" in text and (tmp_path / "out" / name).stat().st_size > 300
    assert "Training did not show what it was for" not in text and "not evaluated on prompts of a kind" in text


def test_model_card_limits_name_missing_evaluations_and_falling_rewards(make_run, tmp_path):
    run = make_run()
    evaluated(run, 0, trained=0.6, observed=0.5)
    evaluated(run, STEP - 2, trained=0.4, observed=0.5)
    evaluated(run, STEP + 2, trained=0.9, observed=0.9)  # of a run that went on: not this model's
    text = readme(run, tmp_path / "out")
    assert f"The results are those of iteration {STEP - 2}; what is exported is iteration {STEP}" in text
    assert "redness ended below its base's (-0.2" in text and "0.900" not in text
    assert "curves.svg" in text and "before_after" not in text
    bare = readme(make_run_elsewhere(run, tmp_path), tmp_path / "bare")
    assert "it was not evaluated beside it" in bare and "curves.svg" not in bare


def make_run_elsewhere(run: Path, tmp_path: Path) -> Path:
    """The same run, never evaluated."""
    copy = shutil.copytree(run, tmp_path / "never", ignore=shutil.ignore_patterns("evaluations", "metrics.jsonl"))
    return Path(copy)


def test_export_leaves_out_learned_noise_and_the_card_says_so(make_run, tmp_path):
    learned = {"name": "flow_sde", "noise_level": 0.7, "learned": {"low": 0.1, "high": 1.5}}
    run = make_run(sampling__transition=learned)
    (run / "checkpoints" / f"step-{STEP}" / "exploration_noise.safetensors").write_bytes(b"")
    text = readme(run, tmp_path / "out")
    assert "noise levels were trained too" in text and "trained on paths with noise (flow_sde)" in text
    assert not list((tmp_path / "out").glob("exploration*"))


@pytest.mark.integration
def test_exported_adapter_loads_in_diffusers(trained, tmp_path, monkeypatch):
    run, policy = trained
    done = export(str(run), tmp_path / "out", lora_only=True)
    assert [name for name in done.files if name.endswith("safetensors")] == ["pytorch_lora_weights.safetensors"]
    plain = DiffusionPipeline.from_pretrained(PIPELINE)
    call = dict(num_inference_steps=2, output_type="np", max_sequence_length=1)

    def drawn(pipe):
        return torch.tensor(pipe("a red circle", generator=torch.Generator().manual_seed(3), **call).images)

    base = drawn(plain)
    plain.load_lora_weights(tmp_path / "out")
    torch.testing.assert_close(drawn(plain), drawn(policy.pipeline), atol=1e-5, rtol=0)
    assert (drawn(plain) - base).abs().max() > 0.01
    code = (tmp_path / "out/README.md").read_text().partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    assert torch.equal(drawn(names["pipe"]), drawn(plain))


@pytest.mark.integration
def test_full_weights_are_exported_in_their_or_the_requested_dtype(tmp_path):
    run, _ = trained_run(tmp_path / "whole", SETTINGS | {"policy": {"model": "shapeworld", "train": "full"}})
    export(f"{run}@best", tmp_path / "out")
    name = "transformer/diffusion_pytorch_model.safetensors"
    kept, came = load_file(run / "checkpoints" / f"step-{STEP}" / name), load_file(tmp_path / "out" / name)
    assert kept.keys() == came.keys() and all(torch.equal(kept[key], came[key]) for key in kept)
    done = export(f"{run}@{STEP}", tmp_path / "half", dtype="bfloat16")
    half = load_file(tmp_path / "half" / name)
    assert all(torch.equal(kept[key].bfloat16(), half[key]) for key in kept)
    assert any("rounded from float32 to bfloat16" in note for note in done.content.notes)
    assert "torch.bfloat16" in done.content.code
    with pytest.raises(ConfigError, match=r"--lora-only: .*trained whole weights"):
        export(str(run), tmp_path / "lora", lora_only=True)


def test_export_overwrites_no_file_and_removes_failed_exports(make_run, tmp_path):
    run, out = make_run(), tmp_path / "out"
    out.mkdir()
    export(str(run), out, lora_only=True)  # empty: fine
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"--out: .*out is not empty, and nothing is overwritten"):
        export(str(run), out, lora_only=True)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        export(str(run), tmp_path / "file", lora_only=True)
    weights = run / "checkpoints" / f"step-{STEP}" / "pytorch_lora_weights.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    with pytest.raises(Exception, match=r"(?i)header"):
        export(str(run), tmp_path / "broken", lora_only=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dots", "file", "out"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("{run}@base", "the model that training began with"),
        ("{run}@7", "kept iterations [4]"),
        ("org/model", "is no run's folder"),
    ],
)
def test_export_rejects_targets_that_are_no_checkpoint(target, reason, make_run, tmp_path):
    target = target.format(run=make_run())
    result = CliRunner().invoke(app, ["export", target, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and reason in " ".join(result.output.split()) and not (tmp_path / "out").exists()


def test_export_command_prints_written_files(make_run, tmp_path):
    result = CliRunner().invoke(app, ["export", str(make_run()), "--out", str(tmp_path / "out"), "--lora-only"])
    assert result.exit_code == 0, result.output
    assert "pytorch_lora_weights.safetensors" in result.output and "load_lora_weights" in result.output
