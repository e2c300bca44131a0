"""Checkpoints of runs with several processes: written once, resumed by any number of them, whole after every signal."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from mmrl.training.run.checkpoints import Checkpoints, damage
from tests.distributed.group import Group, start_group
from tests.distributed.test_equal_numbers import BOUND, FURTHER, SHORT, TEXTS, largest_difference, tensors, train
from tests.training.fork_server import ForkServer
from tests.training.quickstart_run import SMALL, assert_same, contents, write_data

HALVES = ("data.micro_batch=2",)
"""Two calls of two rows in an iteration, one for each of two processes."""
RENAME_2 = "os.rename run/checkpoints/.step-2.tmp"
"""The system call that finishes the checkpoint of iteration 2."""


def start(fork_server: ForkServer, folder: Path, count: int, *changes: str, **orders: object) -> Group:
    write_data(folder)
    return start_group(fork_server, folder, count, "train", "quickstart", *SMALL, *changes, **orders)


def resume(fork_server: ForkServer, folder: Path, count: int, *changes: str) -> Path:
    group = start_group(fork_server, folder, count, "train", "--resume", "run", *changes)
    assert group.wait() == [0] * count, group.output_text()
    return folder / "run"


@pytest.fixture(scope="module")
def pair(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the folder of an uninterrupted run of two processes, and its duration in seconds."""
    folder = tmp_path_factory.mktemp("pair") / "a"
    started = time.monotonic()
    group = start(fork_server, folder, 2, *HALVES)
    assert group.wait() == [0, 0], group.output_text()
    return folder / "run", time.monotonic() - started


@pytest.mark.integration
def test_process_0_alone_writes_and_displays(pair):
    run, _ = pair
    rank_0, rank_1 = (path.read_text() for path in sorted(run.parents[1].glob("a-*.txt")))
    assert "step    4/4" in rank_0 and "before_after.png" in rank_0
    assert "step" not in rank_1 and "error" not in rank_1
    assert [row["step"] for row in lines(run, "train")] == [1, 2, 3, 4]
    own = lines(run, "processes")[-1]
    assert all(own[f"{rank}/seconds/{phase}"] > 0 for rank in (0, 1) for phase in ("rollout", "update"))


def lines(run: Path, kind: str) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.integration
def test_folder_of_two_processes_has_the_files_of_one(fork_server, pair, tmp_path):
    group = start(fork_server, tmp_path / "b", 1, *HALVES)
    assert group.wait() == [0], group.output_text()
    assert contents(pair[0]).keys() == contents(tmp_path / "b/run").keys()
    assert largest_difference(pair[0], tmp_path / "b/run") <= BOUND


@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 3))])
def test_run_of_two_processes_is_resumed_by(fork_server, pair, tmp_path, count):
    """With as many processes to the bit, with another number within rounding."""
    group = start(fork_server, tmp_path / "b", 2, *HALVES, signals=[signal.SIGTERM], at=RENAME_2)
    assert set(group.wait()) == {130}, group.output_text()
    assert Checkpoints(tmp_path / "b/run").load_state().step == 2
    run = resume(fork_server, tmp_path / "b", count)
    if count == 2:
        assert_same(pair[0], run)
    else:
        assert largest_difference(pair[0], run) <= BOUND


@pytest.mark.slow
def test_run_whose_calls_are_dealt_by_lengths_is_resumed_to_the_bit(fork_server, tmp_path):
    """The order in which gradients are added depends on who makes a call, and that on the answers before."""
    words = ("train", "shapes-vlm", *SHORT, *TEXTS, "training={iterations: 4, save_every: 2}")
    runs = {}
    for name, orders in {"a": {}, "b": {"signals": [signal.SIGTERM], "at": RENAME_2}}.items():
        group = start_group(fork_server, tmp_path / name, 2, *words, **orders)
        assert set(group.wait()) == ({130} if orders else {0}), group.output_text()
        runs[name] = tmp_path / name / "run"
    assert Checkpoints(runs["b"]).load_state().values["source"]["lengths"]
    assert_same(runs["a"], resume(fork_server, tmp_path / "b", 2))


@pytest.mark.slow
def test_models_beside_the_policy_are_resumed_by_another_number_of_processes(fork_server, tmp_path):
    words = FURTHER["writer-and-painter"]
    alone = train(fork_server, tmp_path / "a", 1, *words, "training={iterations: 4}")
    train(fork_server, tmp_path / "b", 2, *words)
    run = resume(fork_server, tmp_path / "b", 3, "training.iterations=4")
    assert any(name.startswith("parameters.painter ") for name in tensors(run))
    assert Checkpoints(run).load_state().step == 4 and largest_difference(alone, run) <= BOUND


@pytest.mark.slow
def test_the_decoder_of_a_codec_is_resumed_by_another_number_of_processes(fork_server, tmp_path):
    """Two updates of two calls each: the third process has none in the first."""
    words = (*FURTHER["codec"], "training.updates=2", "stages.0.iterations=1")
    alone = train(fork_server, tmp_path / "a", 1, *words, "training={iterations: 4}")
    train(fork_server, tmp_path / "b", 3, *words, "training={iterations: 2}")
    run = resume(fork_server, tmp_path / "b", 2, "training.iterations=4")
    names = {name.split()[0] for name in tensors(run)}
    assert names == {"parameters", "parameters.decoder", "parameters.judge"}
    assert Checkpoints(run).load_state().step == 4 and largest_difference(alone, run) <= BOUND
    average = "objective"  # of the decoder, whose pictures are rewarded
    assert all(
        torch.allclose(each, tensors(run, average)[name], atol=BOUND) for name, each in tensors(alone, average).items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_sigterm_to_one_process_stops_all_with_one_checkpoint(fork_server, pair, tmp_path, rank):
    group = start(fork_server, tmp_path / "b", 2, *HALVES)
    group.children[0].await_text("step    1/4")
    group.children[rank].send(signal.SIGTERM)
    assert group.wait() == [130, 130], group.output_text()
    assert group.output_text().count("which is saved; go on with: mmrl train --resume run") == 1
    assert_same(pair[0], resume(fork_server, tmp_path / "b", 2))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_all_processes_killed_at_a_random_moment_resume_exactly(fork_server, pair, tmp_path, share):
    run, seconds = pair
    group = start(fork_server, tmp_path / "b", 2, *HALVES)
    time.sleep(share * seconds)
    for child in group.children:
        child.send(signal.SIGKILL)
    group.wait()
    if (tmp_path / "b/run/config.yaml").exists():
        assert all(damage(path) is None for path in (tmp_path / "b/run/checkpoints").glob("step-*"))
        assert_same(run, resume(fork_server, tmp_path / "b", 2))


@pytest.mark.slow
def test_process_without_a_call_takes_part(fork_server, tmp_path):
    """All four rows of an iteration are one call, so process 1 has none; likewise in the evaluations."""
    alone, together = tmp_path / "a", tmp_path / "b"
    for folder, count in ((alone, 1), (together, 2)):
        group = start(fork_server, folder, count)
        assert group.wait() == [0] * count, group.output_text()
    assert largest_difference(alone / "run", together / "run") == 0.0
