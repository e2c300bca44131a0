"""A seed decides a whole run, bit for bit, on one CPU process: and it does decide something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmrl.config import load_config
from mmrl.workflows.train import train

SHORT = [
    "data.groups=2",
    "data.group_size=4",
    "data.micro_batch=4",
    "training.iterations=2",
    "sampling.steps=5",
    "evaluation.prompts=2",
    "evaluation.diversity_prompts=0",
    "evaluation.rewards=[]",
    "data.heldout=null",
    "run.display=quiet",
    "run.pictures=0",
]
MEASURED = ("seconds/", "memory_mib/")


def run(recipe: str, seed: int, folder: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The metrics of every iteration and evaluation, time and memory aside, and all tensors of the last checkpoint."""
    config = load_config(recipe, [*SHORT, f"seed={seed}", f"run.dir={folder}"])
    train(config)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = sorted((folder / "checkpoints/step-2/trainer").glob("*.safetensors"))
    tensors = {f"{file.stem}/{name}": tensor for file in files for name, tensor in load_file(file).items()}
    return [{name: row[name] for name in row if not name.startswith(MEASURED)} for row in rows], tensors


@pytest.mark.integration
@pytest.mark.parametrize("recipe", [pytest.param("quickstart", marks=pytest.mark.slow), "flow-grpo"])
def test_equal_seeds_repeat_a_run_exactly(recipe, tmp_path):
    metrics, tensors = run(recipe, 0, tmp_path / "first")
    torch.manual_seed(99)  # what came before in the process decides nothing
    again, repeated = run(recipe, 0, tmp_path / "again")
    assert metrics == again and len(metrics) == 4  # two iterations, an evaluation before and one after
    assert tensors.keys() == repeated.keys()
    assert all(torch.equal(tensor, repeated[name]) for name, tensor in tensors.items())

    others, moved = run(recipe, 1, tmp_path / "other")
    assert all(row != other for row, other in zip(metrics[1:], others[1:], strict=True))
    assert any(not torch.equal(tensor, moved[name]) for name, tensor in tensors.items())
