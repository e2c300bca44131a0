"""A run on its own edits: what it adds is a data set in its folder, and a resume goes on exactly."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from mmrl.config import load_config
from mmrl.data.jsonl import read_samples
from mmrl.workflows.train import train

KEYS = (
    "data.groups=2",
    "data.group_size=2",
    "data.micro_batch=2",
    "data.validation=null",
    "data.prompts={name: growing, proposer: {name: attempts}, score: variance, add: 2, share: 0.5}",
    "sampling.steps=3",
    "sampling.window={size: 2, high: 2}",
    "training={iterations: 4, save_every: 2}",
    "run.display=quiet",
    "run.pictures=0",
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("growing") / "run"
    return train(load_config("shapes-edit", [*KEYS, f"run.dir={folder}"]))


@pytest.mark.slow
def test_edits_become_pictures_to_edit(straight):
    found = read_samples(straight / "added_prompts.jsonl")
    assert len(found) >= 3 and len({each.conditions["image"] for each in found}) == len(found)
    for each in found:
        assert each.conditions["image"].startswith("data:image/png") and each.prompt.startswith("make the ")
        assert each.metadata["growth"]["depth"] >= 1 and each.answer
    rows = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["prompts/added"] == len(found) and any(row["prompts/added_in_batch"] for row in rows)


@pytest.mark.slow
def test_it_resumes_to_the_bit(straight, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    shutil.rmtree(folder / "checkpoints" / "step-4")
    added = (folder / "added_prompts.jsonl").read_bytes()
    train(load_config(str(folder / "config.yaml")), resume=folder)
    assert (folder / "added_prompts.jsonl").read_bytes() == added
    files = [run / "checkpoints" / "step-4" / "trainer" / "parameters.safetensors" for run in (straight, folder)]
    ends = [load_file(file) for file in files]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.integration
def test_what_was_added_trains_another_run(straight, tmp_path):
    keys = [*KEYS, f"run.dir={tmp_path}/run", f"data.path={straight}/added_prompts.jsonl"]
    run = train(load_config("shapes-edit", [key for key in keys if "prompts=" not in key] + ["training.iterations=1"]))
    assert (run / "checkpoints" / "step-1").is_dir()
