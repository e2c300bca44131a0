"""Stop signals: the first finishes the iteration, the second exits at once; neither breaks a checkpoint."""

from __future__ import annotations

import signal

import pytest

from mmrl.errors import RunError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.run_folder import only_writer
from tests.training import gaussian_run
from tests.training.quickstart_run import assert_same, finish, start

TWICE = [signal.SIGINT, signal.SIGINT]


@pytest.mark.integration
@pytest.mark.parametrize(
    "at, step",
    [
        ("run/heldout/samples/step-2", 1),
        pytest.param("os.rename run/checkpoints/.step-2.tmp", 1, marks=pytest.mark.slow),
        (".index.json.tmp", 1),
    ],
    ids=["amid an iteration", "amid saving", "between a checkpoint and the index"],
)
def test_second_interrupt_exits_at_once_and_resumes_exactly(fork_server, straight, tmp_path, at, step):
    child = start(fork_server, tmp_path / "b", signals=TWICE, at=at)
    assert child.wait() == 130, child.output_text()
    output = child.output_text()
    assert "SIGINT: finishing this iteration, then saving; once more to leave at once" in output
    assert (
        f"left at once, the last checkpoint is step-{step}; " in output
        and "go on with: mmrl train --resume run" in output
        and "Traceback" not in output
    )
    assert Checkpoints(tmp_path / "b/run").load_state().step == step
    finish(fork_server, tmp_path / "b")
    assert_same(straight[0], tmp_path / "b/run")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_the_iteration_with_a_closed_output(fork_server, tmp_path, number):
    """`mmrl train 2>&1 | tee log`: Ctrl-C ends tee first, and the run must not die of its broken pipe."""
    train = "tests.training.gaussian_run:train"
    expected = fork_server.call(tmp_path / "a", train, "run")
    assert expected.wait() == 0
    child = fork_server.call(
        tmp_path / "b",
        "tests.training.gaussian_run:train",
        "run",
        True,
        signals=[number],
        at=".step-1.tmp",
        unread=True,
    )
    child.wait()
    assert Checkpoints(tmp_path / "b/run").load_state().step == 1
    assert fork_server.call(tmp_path / "b", train, "run").wait() == 0
    assert gaussian_run.contents(tmp_path / "a/run") == gaussian_run.contents(tmp_path / "b/run")


@pytest.mark.integration
def test_second_process_is_locked_out_of_the_folder(fork_server, straight, tmp_path):
    first = start(fork_server, tmp_path / "b")
    first.await_text("step    1/4")
    second = fork_server.start(tmp_path / "b", "train", "--resume", "run")
    assert second.wait() == 1
    assert f"error: run is being written by another process (process {first.pid} on " in second.output_text()
    assert first.wait() == 0
    assert_same(straight[0], tmp_path / "b/run")


def test_lock_ends_with_its_process(tmp_path):
    with only_writer(tmp_path), pytest.raises(RunError, match="another process"), only_writer(tmp_path):
        pass
    with only_writer(tmp_path):
        pass
