"""Exported weights that went on from a run's checkpoints, against a trajectory that is known in closed form."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmrl.build.policies import build_policy
from mmrl.cli import app
from mmrl.config.loading.load import dump_config
from mmrl.config.train import TrainConfig
from mmrl.export.export import export
from mmrl.finetuning.weight_trajectories import adapter_changes
from mmrl.training.run.checkpoints import Checkpoints, TrainerState
from tests.export.trained_runs import DATA

EVERY, KEPT, RATE = 2, 7, 0.7
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def way(checkpoint: int) -> float:
    """The share of its way that the policy has gone at a checkpoint."""
    return 1 - RATE**checkpoint


@pytest.fixture(scope="module")
def saturating(tmp_path_factory):
    """A run whose adapters of rank one approach a limit, and the changes at the limit."""
    folder = tmp_path_factory.mktemp("runs") / "saturating"
    policy = {"model": "shapeworld", "train": "lora", "lora": {"rank": 1, "alpha": 1}}
    training = {"iterations": EVERY * KEPT, "save_every": EVERY, "keep_every": EVERY}
    config = TrainConfig.model_validate(
        {"name": "run", "data": DATA, "policy": policy, "training": training}, strict=False
    )
    trained = build_policy(config.policy, config.sampling)
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    chance = torch.Generator().manual_seed(0)
    limits = {
        name: 0.3 * torch.randn(parameter.shape, generator=chance)
        for name, parameter in trained.parameters_to_train().items()
        if "lora_B" in name
    }
    checkpoints = Checkpoints(folder, EVERY)
    for number in range(1, KEPT + 1):
        with torch.no_grad():
            for name, limit in limits.items():
                trained.parameters_to_train()[name].copy_(way(number) * limit)
        checkpoints.save(trained, TrainerState(EVERY * number, {}, {}), score=0.5)
    last = dict(adapter_changes(trained.pipeline.transformer))
    return folder, {name: change / way(KEPT) for name, change in last.items()}


@pytest.mark.slow
def test_exported_weights_are_where_the_trajectory_would_be(saturating, tmp_path):
    run, limits = saturating
    export(str(run), tmp_path / "now")
    done = export(str(run), tmp_path / "later", ahead=3)
    now, later = load_file(tmp_path / "now" / WEIGHTS), load_file(tmp_path / "later" / WEIGHTS)
    gap = lost = 0.0
    for name, limit in limits.items():
        weight = f"{name.partition('.')[2]}.weight"
        truth = (way(KEPT + 3) - way(KEPT)) * limit
        gap += float((later.pop(weight) - now[weight] - truth).square().sum())
        lost += float(truth.square().sum())
    assert len(limits) > 4 and gap < 0.04 * lost  # within a fifth, by the norm; without moving on it is the whole
    assert all(torch.equal(now[name], each) for name, each in later.items())
    assert any("iteration 14 they go on for the distance of 6 iterations" in note for note in done.content.notes)
    assert "arXiv:2604.11446" in (tmp_path / "later" / "README.md").read_text()


@pytest.mark.parametrize(
    ("which", "options", "changes", "reason"),
    [
        ("last", ["--lora-only"], {}, "leave out --lora-only"),
        ("last", [], {"policy": {"model": "shapeworld", "train": "full"}}, "trained whole weights"),
        ("last", [], {"training": {"keep_every": None}}, "train with training.keep_every"),
        (
            "last",
            [],
            {"training": {"save_every": 4, "keep_every": 4}},
            "no multiple of training.keep_every, which is 4: name",
        ),
        ("last", [], {"training": {"save_every": 1, "keep_every": 1}}, "no checkpoint of iteration 1"),
        ("8", [], {"training": {"save_every": 2, "keep_every": 2}}, "needs 5 checkpoints, and up to iteration 8"),
    ],
)
def test_export_rejects_runs_without_a_trajectory(which, options, changes, reason, saturating, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(saturating[0] / "checkpoints")
    config = {"name": "run", "data": DATA, "policy": {"model": "shapeworld", "train": "lora"}} | changes
    config["training"] = {"iterations": 14} | changes.get("training", {})
    (run / "config.yaml").write_text(dump_config(TrainConfig.model_validate(config, strict=False)), encoding="utf-8")
    result = CliRunner().invoke(
        app, ["export", f"{run}@{which}", "--out", str(tmp_path / "out"), "--ahead", "2", *options]
    )
    found = " ".join(result.output.split())
    assert result.exit_code == 2 and reason in found and not (tmp_path / "out").exists()
