"""The benchmarks still run, and compare like with like. One runs every day, the others with the slow tests."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch


@pytest.fixture
def replay(repository) -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay_benchmark", repository / "benchmarks" / "replay.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def bench(fork_server, repository, tmp_path) -> Callable[[str], str]:
    """Runs a benchmark at its small size, as `python benchmarks/NAME.py --smoke`, and gives what it prints."""

    def run(name: str) -> str:
        child = fork_server.script(tmp_path / name, repository / "benchmarks" / f"{name}.py", "--smoke")
        assert child.wait() == 0, child.output_text()
        return child.output_text()

    return run


@pytest.mark.slow
def test_replay_benchmark_runs(bench):
    output = bench("replay")
    assert "pictures none" in output
    for phase in ("rollout", "update", "both"):
        assert len(re.findall(rf"^{phase} +(?:CPU|wall) s(?: +[\d.]+){{3}}", output, re.MULTILINE)) == 2


@pytest.mark.slow
def test_replay_benchmark_rejects_unequal_outputs(replay, monkeypatch, capsys):
    """Set after the policy is made: only the hand-written side sees it."""
    pipeline = replay.build({})
    ours, theirs, advantages = replay.Mechanism(pipeline), replay.ByHand(pipeline), torch.tensor([1.0, -1.0])
    replay.check_equal(ours, theirs, advantages)
    for changed in ("GUIDANCE", "NOISE"):
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match="the two do not compute the same"):
            patch.setattr(replay, changed, 1.01 * getattr(replay, changed))
            replay.check_equal(ours, theirs, advantages)
    replay.check_equal(ours, theirs, advantages)


def test_replay_benchmark_reports_the_median_of_paired_ratios(replay, capsys):
    """Both clocks; the median of the ratios, not the ratio of the medians: turns may be slow, both sides of them."""
    turns = [
        {side: {phase: (slow * cost, 10 * slow * cost) for phase in replay.PHASES} for side, cost in costs.items()}
        for slow, costs in [
            (1.0, {"by hand": 1.0, "policy": 1.02}),
            (9.0, {"by hand": 1.0, "policy": 1.04}),
            (2.0, {"by hand": 1.0, "policy": 1.20}),
        ]
    ]
    assert replay.compare(turns) == pytest.approx({"CPU": 1.04, "wall": 1.04})
    assert "both      CPU s" in capsys.readouterr().out


@pytest.mark.slow
def test_full_size_benchmark_runs_at_a_small_size(bench):
    output = bench("full_size")
    assert re.search(r"^mmrl: replay gap 0.0e\+00$", output, re.MULTILINE)
    assert "pictures/s" in output and "estimated in all" in output
    work = re.findall(r"([\d.]+) and ([\d.]+) GFLOP in rollout and update", output)
    ours, theirs = ([float(part) for part in each] for each in work)
    assert ours == pytest.approx(theirs, rel=0.1), "the published loop must do the same work"


@pytest.mark.slow
def test_full_size_vlm_benchmark_runs_at_a_small_size(fork_server, repository, tmp_path):
    script = repository / "benchmarks" / "full_size_vlm.py"
    profile, out = tmp_path / "profile.json", tmp_path / "results"
    child = fork_server.script(tmp_path / "run", script, "--smoke", "--profile", str(profile), "--out", str(out))
    assert child.wait() == 0, child.output_text()
    assert "2 prompts of 26 tokens (4 of a picture), 4 answers of 40 tokens to each" in child.output_text()
    kept = json.loads((out / "full_size_vlm.json").read_text())
    for side in ("mmrl", "trl"):
        assert kept[side]["step"] >= kept[side]["rollout"] > 0 and kept[side]["update"] > 0
    assert "| trl |" in (out / "full_size_vlm.md").read_text()
    assert all(part["calls"] > 0 for part in json.loads(profile.read_text()).values())


@pytest.mark.slow
def test_rewards_benchmark_scores_both_ways_equally(bench):
    rows = re.findall(r"([\d.]+) answers/s one by one +([\d.]+) in a suite +([\d.]+) times", bench("rewards"))
    assert len(rows) == 3 and all(float(ratio) > 0 for _, _, ratio in rows)


@pytest.mark.slow
def test_reward_service_benchmark_scores_both_ways_equally(bench):
    assert re.search(r"in process, [\d.]+ s by a service, [\d.]+ times", bench("reward_service"))


@pytest.mark.slow
def test_vlm_step_benchmark_does_the_same_work_as_trl(bench):
    output = bench("vlm_step")
    assert "2 prompts of 34 tokens, 4 answers of 8 tokens to each" in output
    assert re.search(r"^ratio [\d.]+ ", output, re.MULTILINE)


@pytest.mark.slow
def test_vlm_update_benchmark_compares_equal_paths(bench):
    output = bench("vlm_update")
    cells = next(line for line in output.splitlines() if line.startswith("| smoke")).split("|")
    assert float(cells[9]) < 2e-5 and float(cells[10]) < 1e-4  # log-probabilities, and gradients
    assert float(cells[6]) == pytest.approx(4 * (34 + 8) / (34 + 4 * 8), abs=0.01)


@pytest.mark.slow
def test_turns_benchmark_compares_equal_trajectories(bench):
    output = bench("turns")
    assert "8 rows of 2.0 turns" in output
    assert float(re.search(r"differ by ([\d.e-]+)", output)[1]) < 1e-5
    assert float(re.search(r"equal tokens, log-probabilities differ by ([\d.e-]+)", output)[1]) < 1e-4
    assert len(re.findall(r"^waves [14] with a tool of [\d.]+ s: [\d.]+ times", output, re.MULTILINE)) == 3


@pytest.mark.slow
def test_kernel_benchmarks_measure_against_their_baselines(fork_server, repository, tmp_path):
    script = repository / "kernels" / "benchmarks" / "run.py"
    out = tmp_path / "results"
    child = fork_server.script(
        tmp_path / "run", script, "--smoke", "--only", "linear", "shared_prompt", "--out", str(out)
    )
    assert child.wait() == 0, child.output_text()
    assert "| `linear_logprob` |" in child.output_text() and "| `shared_prompt` |" in child.output_text()
    kept = json.loads((out / "kernels-cpu.json").read_text())
    assert {line["op"] for line in kept["lines"]} == {"linear_logprob", "shared_prompt"}
    assert (out / "kernels-cpu.md").read_text().count("\n| `") == len(kept["lines"])


@pytest.mark.slow
def test_teacher_benchmark_compares_iterations(bench):
    rows = [line.split(" | ") for line in bench("teacher").splitlines() if line.endswith(" |") and "CPU" not in line]
    assert [row[0].strip("| ") for row in rows] == ["grpo", "distill", "mix"]
    assert all(float(row[1]) > 0 for row in rows) and rows[0][2] == "1.00 |"


@pytest.mark.slow
def test_overlap_benchmark_measures_every_arrangement(bench):
    rows = [line for line in bench("overlap").splitlines() if line.startswith("| ") and " s |" in line]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [
        "synchronous",
        "run.overlap: {lag: 1}",
        "run.overlap: {lag: 2, stream: true}",
    ]
