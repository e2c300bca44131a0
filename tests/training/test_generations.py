"""A past, a present and a future generation of one policy: who begins as whom, and a run killed at a stage's start."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.killed_runs import KilledRun
from tests.training.quickstart_run import assert_same

PAIRS = "{name: online_dpo, writers: {chosen: future, rejected: past}}"
WORDS = [
    "policy.train=lora",
    "models={past: {of: policy}, future: {model: 'shapeworld:sums', train: lora}}",
    "stages=[{iterations: 2, train: future, begin: policy}, {iterations: 1, lr_scale: 0.5}]",
    "rounds=2",
    f"algorithm={PAIRS}",
    "rewards=[{name: own_votes, args: {draws: 4}}, {name: numeric, weight: 0}]",
    "data={path: 'shapeworld:sums-train', groups: 8, group_size: 6}",
    "training={iterations: 6, save_every: 1}",
    "evaluation={}",
    "optimizer={lr: 1.0e-2}",
    "sampling.max_new_tokens=24",
    "run={dir: run, display: plain}",
]


RUN = KilledRun("shapes-reasoning", WORDS)


@pytest.fixture(scope="module")
def run(fork_server, tmp_path_factory) -> Path:
    return RUN.undisturbed(fork_server, tmp_path_factory.mktemp("generations"))[0]


def parameters(run: Path, step: int, name: str) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/step-{step}/trainer/{name}.safetensors")


@pytest.mark.integration
def test_the_next_generation_begins_as_the_policy_and_leads_it(run):
    rows = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if row["kind"] == "train"]
    assert [row["stage"] for row in rows] == [0, 0, 1, 0, 0, 1]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-2, 1e-2, 5e-3] * 2)
    assert all(0 <= row["pairs/share"] <= 1 and row["tokens"] > 0 for row in rows)
    learnt = [row for row in rows if row["pairs/share"]]
    assert learnt and all(row["pairs/own_votes"] > 0 and "pairs/numeric" in row for row in learnt)
    own, future = ([parameters(run, step, name) for step in (5, 6)] for name in ("parameters", "parameters.future"))
    assert any(not torch.equal(own[0][name], own[1][name]) for name in own[0])  # between them the policy learns
    assert all(torch.equal(future[0][name], future[1][name]) for name in future[0])
    moved = sum(float((future[0][name] - own[0][name]).abs().max()) for name in own[0])
    assert 0 < moved < 3 * len(own[0]) * 2 * 1e-2  # two updates apart, not four


@pytest.mark.slow
def test_a_kill_before_the_second_generation_changes_nothing(run, fork_server, tmp_path):
    child = RUN.start(fork_server, tmp_path, signals=[signal.SIGKILL], at="os.rename run/checkpoints/.step-4.tmp")
    assert child.wait() == -signal.SIGKILL  # step 4 is the first of the second generation, and is computed again
    RUN.finish(fork_server, tmp_path)
    assert_same(run, tmp_path / "run")
