"""Full disks, read-only folders and damaged files: one message, and what was finished is there still."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from mmrl.errors import ConfigError, RunError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.display import QuietDisplay
from mmrl.training.run.run_folder import check_run_folder
from mmrl.training.run.trackers import JsonlTracker, OptionalTracker
from tests.training import gaussian_run
from tests.training.quickstart_run import assert_same, finish, start


def error_of(child, code=1) -> str:
    """Return the error message of a program, after checking that there is exactly one."""
    assert child.wait() == code, child.output_text()
    before, _, message = f"\n{child.output_text()}".rpartition("\nerror: ")
    assert message and "\nerror: " not in before and "Traceback" not in before, child.output_text()
    return message


# Full disks


@pytest.fixture
def small_disk(straight, tmp_path):
    """A separate file system with room for two checkpoints but not for three."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = sum(file.stat().st_size for file in straight[0].glob("checkpoints/step-4/**/*") if file.is_file())
    options = f"size={int(2.6 * size)}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.slow
def test_full_disks_keep_the_last_checkpoint(fork_server, straight, small_disk, tmp_path):
    message = error_of(start(fork_server, small_disk / "b"))
    run = small_disk / "b/run"
    assert "No space left on device" in message and "mmrl train --resume run" in message
    assert "step-3 is unchanged" in message and Checkpoints(run).load_state().step == 3
    assert not list((run / "checkpoints").glob(".*"))
    shutil.copytree(small_disk / "b", tmp_path / "larger")
    finish(fork_server, tmp_path / "larger")
    assert_same(straight[0], tmp_path / "larger/run")


@pytest.mark.integration
def test_file_size_limits_stop_the_run_with_one_message(fork_server, tmp_path):
    """Limits are enough of a full disk where none can be mounted."""
    message = error_of(start(fork_server, tmp_path / "b", largest_file=50_000))
    assert (
        message.startswith("the checkpoint run/checkpoints/step-1 cannot be written (")
        and "there is none yet" in message
    )
    assert not list((tmp_path / "b/run/checkpoints").iterdir())


@pytest.mark.integration
def test_unwritable_metrics_end_with_a_whole_line(fork_server, tmp_path):
    train = "tests.training.gaussian_run:train"
    assert fork_server.call(tmp_path / "expected", train, "run").wait() == 0
    whole = tmp_path / "expected/run/metrics.jsonl"
    sizes = [len(line) for line in whole.read_bytes().splitlines(keepends=True)]
    # The middle of iteration 2's metrics, the longest line: clocks have more or fewer digits from run to run.
    full = fork_server.call(tmp_path / "b", train, "run", largest_file=sum(sizes[:3]) + sizes[3] // 2)
    assert full.wait() != 0 and "iteration 2: [Errno 27] File too large: 'run/metrics.jsonl'." in full.output_text()
    assert len((tmp_path / "b/run/metrics.jsonl").read_text().splitlines()) == 3
    assert fork_server.call(tmp_path / "b", train, "run").wait() == 0
    assert gaussian_run.contents(tmp_path / "b/run") == gaussian_run.contents(tmp_path / "expected/run")


@pytest.mark.slow
def test_unwritable_images_stop_the_run(fork_server, straight, tmp_path):
    (tmp_path / "b/run/heldout").mkdir(parents=True)
    (tmp_path / "b/run/heldout/config.yaml").symlink_to("/dev/full")
    message = error_of(start(fork_server, tmp_path / "b"))
    assert message.startswith("stopped after iteration 0: [Errno 28] No space left on device")
    (tmp_path / "b/run/heldout/config.yaml").unlink()
    finish(fork_server, tmp_path / "b")
    assert_same(straight[0], tmp_path / "b/run")


@pytest.mark.integration
def test_a_disk_that_is_full_after_the_last_iteration_is_named_with_what_is_missing(fork_server, straight, tmp_path):
    shutil.copytree(straight[0].parent, tmp_path / "b")
    grid = tmp_path / "b/run/before_after.png"
    grid.unlink()
    grid.symlink_to("/dev/full")
    message = error_of(fork_server.start(tmp_path / "b", "train", "--resume", "run"))
    assert message == (
        "training has ended, and is saved, but [Errno 28] No space left on device: 'run/before_after.png'. "
        "Fix that, then write what is missing with: mmrl train --resume run\n"
    )


def test_failed_optional_trackers_are_dropped(tmp_path, caplog):
    class Full(JsonlTracker):
        def log(self, kind, step, metrics):
            self.calls = getattr(self, "calls", 0) + 1
            with open("/dev/full", "w") as file:
                file.write("x")

    inner = Full(tmp_path)
    tracker = OptionalTracker(inner)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            tracker.log("train", step, {})
    assert inner.calls == 1
    assert [r.getMessage() for r in caplog.records] == [
        "Full is disabled from here on: [Errno 28] No space left on device"
    ]


# Folders that cannot be written


def test_read_only_folders_are_rejected_before_loading_a_model(fork_server, tmp_path):
    """Permissions do not bind root, so root gives itself up."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b").chmod(0o555)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    child = fork_server.start(tmp_path / "b", "train", "quickstart", "run.dir=runs/it", unprivileged=True)
    assert error_of(child, 2).startswith("runs/it cannot be written: ") and "is read-only" in child.output_text()
    assert "Loading" not in child.output_text()


def test_files_in_the_way_are_named(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"runs/it cannot be a run folder: .*runs is a file"):
        check_run_folder(tmp_path / "runs" / "it")


# Damaged files


@pytest.fixture
def finished(tmp_path) -> Path:
    gaussian_run.train(str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.mark.parametrize("part", ["parameters.safetensors", "optimizer.safetensors", "state.json"])
def test_truncated_checkpoints_are_named_with_the_last_whole_one(finished, part):
    expected = gaussian_run.contents(finished)
    path = finished / "checkpoints/step-3/trainer" / part
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RunError) as refused:
        gaussian_run.trainer(finished, QuietDisplay()).resume()
    message = str(refused.value)
    assert str(path) in message and "The checkpoint of iteration 2 is complete" in message
    command, _, resume = message.partition("to go on from it: ")[2].partition(" && ")
    assert resume == f"mmrl train --resume {finished}"
    subprocess.run(command, shell=True, check=True)  # as the message says
    gaussian_run.train(str(finished))
    assert gaussian_run.contents(finished) == expected


def test_missing_and_changed_files_are_named(finished):
    path = finished / "checkpoints/step-3/theta.safetensors"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(RunError, match=r"theta\.safetensors is missing\. The checkpoint of iteration 2 is complete"):
        Checkpoints(finished).path()
    path.write_bytes(content)
    inner = finished / "checkpoints/step-3/trainer/average.safetensors"
    inner.write_bytes(b"\xff" * inner.stat().st_size)  # of the right size
    with pytest.raises(RunError, match=r"trainer cannot be read .*The checkpoint of iteration 2 is complete"):
        Checkpoints(finished).load_state()


def test_missing_whole_checkpoints_are_reported(finished):
    for state in finished.glob("checkpoints/*/trainer/state.json"):
        state.unlink()
    with pytest.raises(RunError, match="no other checkpoint is complete"):
        Checkpoints(finished).load_state()
    shutil.rmtree(finished / "checkpoints/step-2")
    shutil.rmtree(finished / "checkpoints/step-3")
    with pytest.raises(RunError, match=r"lacks the checkpoints that its index\.json lists"):
        gaussian_run.trainer(finished, QuietDisplay()).resume()


@pytest.mark.parametrize("content", [None, b"", b'{"last": "st', b'{"last": "step-1"}', b"[]", b"\xff\xfe\x80{"])
def test_checkpoint_index_is_rebuilt_from_folders(finished, content, caplog):
    index = finished / "checkpoints/index.json"
    expected = index.read_text()
    index.unlink() if content is None else index.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert Checkpoints(finished).path("best").name == "step-2"
        assert Checkpoints(finished).load_state().step == 3
    assert "index.json" in caplog.text and "by the folders, the last is step-3" in caplog.text
    gaussian_run.trainer(finished, QuietDisplay()).resume()
    assert index.read_text() == expected and json.loads(expected)["best_score"] == 0.9


def test_unset_best_reward_is_json(tmp_path, make_trainer):
    trainer = make_trainer()
    trainer.save(score=float("nan"))
    text = (tmp_path / "run/checkpoints/step-0/trainer/state.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["best_reward"] is None
    again = make_trainer()
    again.resume()
    assert again._best_reward == float("-inf") and "best" not in again.checkpoints.index()


def test_truncated_lines_are_removed_before_appending(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tra')
    JsonlTracker(tmp_path).log("train", 2, {})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
