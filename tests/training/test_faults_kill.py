"""SIGKILL at any moment: `--resume` ends where an uninterrupted run does, bit for bit."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest

from mmrl.training.run.checkpoints import Checkpoints
from tests.training import gaussian_run
from tests.training.quickstart_run import assert_same, contents, finish, start


def test_compared_contents_include_every_state_file(straight):
    files = contents(straight[0])
    parts = ("parameters.safetensors", "optimizer.safetensors", "average.safetensors", "objective.safetensors")
    assert {f"checkpoints/step-4/trainer/{part}" for part in (*parts, "state.json")} <= files.keys()
    assert {"before_after.png", "evaluations/step-2.jsonl", "heldout/samples/step-4/0001-0.png"} <= files.keys()
    assert [(row["kind"], row["step"]) for row in files["metrics.jsonl"]] == [
        ("evaluation", 0), ("train", 1), ("train", 2), ("evaluation", 2), ("train", 3), ("train", 4), ("evaluation", 4),
    ]  # fmt: skip
    assert "prompts" in json.loads(files["checkpoints/step-4/trainer/state.json"])["source"]


@pytest.mark.integration
@pytest.mark.parametrize("draw", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [2, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (0, 1, 3, 4))])
def test_run_resumes_after_a_kill_at_a_random_moment(fork_server, straight, tmp_path, steps, draw):
    """Before the first step and after each, so that all phases are met; the machine's mood adds its own chance."""
    run, seconds = straight
    child = start(fork_server, tmp_path / "b")
    if steps:
        child.await_text(f"step    {steps}/4")
    time.sleep(seconds * random.Random(5 * draw + steps).random() / (10 if steps else 3))
    child.send(signal.SIGKILL)
    ended = child.wait()
    assert ended == -signal.SIGKILL or (steps == 4 and ended == 0)  # a machine in a good mood may be done by then
    finish(fork_server, tmp_path / "b")
    assert_same(run, tmp_path / "b/run")


@pytest.mark.integration
@pytest.mark.parametrize(
    "at",
    [
        "os.rename run/.config.yaml.tmp",
        ".index.json.tmp",
        pytest.param("samples/step-0/0001-0.png", marks=pytest.mark.slow),
    ],
)
def test_run_resumes_after_a_kill_at_a_critical_moment(fork_server, straight, tmp_path, at):
    """Before there is a configuration; in the first evaluation; between a checkpoint's rename and the index."""
    child = start(fork_server, tmp_path / "b", signals=[signal.SIGKILL], at=at)
    assert child.wait() == -signal.SIGKILL
    output = finish(fork_server, tmp_path / "b")
    if "samples" in at:
        assert "run has no checkpoint yet: starting from the beginning" in output
    if "index" in at:
        assert "index.json is missing: by the folders, the last is step-1" in output
    assert_same(straight[0], tmp_path / "b/run")


@pytest.mark.slow
def test_run_resumes_after_a_kill_while_saving_adapters(fork_server, tmp_path):
    changes = ["policy.train=lora", "sampling.steps=3", "sampling.window={}", "training.iterations=3"]
    for name, orders in (
        ("a", {}),
        ("b", {"signals": [signal.SIGKILL], "at": "os.rename run/checkpoints/.step-2.tmp"}),
    ):
        child = start(fork_server, tmp_path / name, *changes, recipe="flow-grpo", **orders)
        assert child.wait() == (-signal.SIGKILL if orders else 0), child.output_text()
    finish(fork_server, tmp_path / "b")
    assert_same(tmp_path / "a/run", tmp_path / "b/run")


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_run_resumes_after_a_kill_before_a_file_change(fork_server, tmp_path, every):
    """At each of these the last checkpoint is whole and no older than a moment before, and what follows is exact."""
    run = "tests.training.gaussian_run:train"
    count = fork_server.call(tmp_path / "straight", run, "run", count_changes=True)
    assert count.wait() == 0, count.output_text()
    changes = [line for line in count.output_text().splitlines() if line.startswith("change ")]
    expected = gaussian_run.contents(tmp_path / "straight/run")
    steps = []
    for number in range(1, len(changes) + 1, every):
        folder = tmp_path / f"k{number}"
        assert fork_server.call(folder, run, "run", signals=[signal.SIGKILL], at=number).wait() == -signal.SIGKILL
        checkpoints = Checkpoints(folder / "run")
        steps.append(checkpoints.load_state().step if checkpoints.any_finished() else 0)
        again = fork_server.call(folder, run, "run")
        assert again.wait() == 0, f"{changes[number - 1]}\n{again.output_text()}"
        assert gaussian_run.contents(folder / "run") == expected, changes[number - 1]
    assert steps == sorted(steps) and set(steps) == {0, 1, 2, 3}
