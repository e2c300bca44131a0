"""Real processes and real signals: one process ends, freezes or hangs, and all end, with one message that names it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mmrl.cli.errors import CommandGroup
from mmrl.config.training import TimeoutsConfig
from mmrl.distributed.position import position
from mmrl.distributed.processes import joined
from mmrl.errors import ConfigError
from tests.training.fork_server import Child, ForkServer

SCRIPT = Path(__file__).with_name("faulty_process.py")
LIMIT_S = 60.0
SILENCE_S, LATENESS_S = "3", "12"
"""Far apart, so that a busy machine does not decide which of the two is noticed first."""
PLACE = r"in phase rollout of iteration 3"
WAY_ON = "the last checkpoint is of iteration 2; go on with: mmrl train --resume runs/toy"


class Launch:
    """Processes that were started together, each with files for what it prints."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self._folder, self._fork_server = folder, fork_server
        self._scripts: list[Child] = []
        self._commands: list[subprocess.Popen[bytes]] = []
        self._begun = time.monotonic()

    def start_script(self, *words: str, variables: dict[str, str]) -> None:
        """Start `SCRIPT WORDS` in a process."""
        run = ("tests.training.fork_server:run_script", str(SCRIPT), *words)
        self._scripts.append(self._fork_server.call(self._folder / "script", *run, environment=variables))

    def start_command(self, command: list[str]) -> None:
        """Start a program."""
        with (self._folder / "command.txt").open("wb") as out:
            self._commands.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))

    def codes(self) -> list[int]:
        """Wait for the end of all, and return their exit codes; all end in `LIMIT_S` seconds."""
        found = [self._scripts.pop(0).wait() for _ in range(len(self._scripts))]
        found += [each.wait(timeout=LIMIT_S) for each in self._commands]
        assert time.monotonic() - self._begun <= LIMIT_S
        return found

    def printed(self) -> str:
        """Return the lines that all have printed."""
        return "".join(each.read_text() for each in sorted(self._folder.glob("*.txt")))

    def message(self) -> str:
        """Return the one message about a process."""
        found = re.findall(r"^error: (process .*)$", self.printed(), flags=re.MULTILINE)
        assert len(found) == 1, self.printed()
        return str(found[0])

    def close(self) -> None:
        """Kill those that run."""
        for script in self._scripts:
            script.send(9)
            script.wait()
        for each in self._commands:
            if each.poll() is None:
                os.killpg(each.pid, 9)
                each.wait()


@pytest.fixture
def launch(tmp_path: Path, fork_server: ForkServer) -> Iterator[Launch]:
    """No processes yet."""
    with closing(Launch(tmp_path, fork_server)) as launched:
        yield launched


def start(
    launch: Launch,
    fault: str,
    rank: int,
    count: int = 2,
    absent: tuple[int, ...] = (),
    silence: str = SILENCE_S,
    lateness: str = LATENESS_S,
) -> None:
    """Start the script with the variables alone: process 0 holds the store."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    for each in set(range(count)).difference(absent):
        launch.start_script(fault, str(rank), silence, lateness, variables=variables | {"RANK": str(each)})


def free_port() -> int:
    """Return a port that is free now."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def check_message(launch: Launch, rank: int, count: int, reason: str) -> None:
    """Check that the one message names the process, its place, the reason, and the last checkpoint."""
    pattern = (
        rf"process {rank} of {count} \({re.escape(socket.gethostname())}, pid \d+\) \w+ {PLACE}: {reason}; {WAY_ON}"
    )
    assert re.fullmatch(pattern, launch.message()), launch.message()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "rank", "reason"),
    [
        ("kill", 0, "it was killed, or its host was lost: the store .* is gone"),  # process 0 holds it
        ("freeze", 1, "it gave no sign of life for 3 s: .*"),
        pytest.param("raise", 1, "ValueError: the reward broke", marks=pytest.mark.slow),
        pytest.param("terminate", 1, "SIGTERM came", marks=pytest.mark.slow),
    ],
)
def test_one_process_ends_all_with_one_message(launch: Launch, fault: str, rank: int, reason: str) -> None:
    """A fault of one process is named once, and no process ends as if all were well."""
    start(launch, fault, rank)
    assert 0 not in launch.codes()
    check_message(launch, rank, 2, reason)


@pytest.mark.integration
@pytest.mark.parametrize("fault", ["hang", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_late_process_ends_too(launch: Launch, fault: str) -> None:
    """A process that is late before it is silent is named as late; a frozen one is killed in the end."""
    start(launch, fault, 1, silence="6", lateness="3")
    assert 0 not in launch.codes()
    check_message(launch, 1, 2, "the others have waited for it for 3 s")


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "rank"), [("raise", 2), ("kill", 0), ("freeze", 0), ("hang", 2)])
def test_three_processes_agree_on_one_message(launch: Launch, fault: str, rank: int) -> None:
    """Two processes see the fault of a third one, with the store and without it, and one of them writes."""
    start(launch, fault, rank, count=3)
    assert 0 not in launch.codes()
    check_message(launch, rank, 3, ".*")


def test_an_error_of_all_processes_is_printed_once(launch: Launch) -> None:
    """Every process raises the same error before the first iteration; one message names it."""
    start(launch, "config", 0)
    assert launch.codes() == [1, 1]
    assert re.fullmatch(
        r"process [01] of 2 \(.*\) stopped before the first iteration: ConfigError: optimizer.lr is no number; "
        "no checkpoint was written yet",
        launch.message(),
    )
    assert launch.printed().count("Traceback") == 1


@pytest.mark.slow
def test_without_a_fault_nothing_is_printed(launch: Launch) -> None:
    """All end with 0."""
    start(launch, "none", 0)
    assert launch.codes() == [0, 0]
    assert "process " not in launch.printed() and "Traceback" not in launch.printed()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind"), [("interrupt", "KeyboardInterrupt"), ("stop-on-request", "RunStopped")])
def test_a_stop_on_request_is_no_failure(launch: Launch, fault: str, kind: str) -> None:
    """The first process raises the stop, and the other leaves without a message."""
    start(launch, fault, 0)
    assert 0 not in launch.codes()
    assert "error: process" not in launch.printed()
    assert launch.printed().count("Traceback") == 1 and kind in launch.printed()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "freeze", "kill-early"])
def test_torchrun_starts_them(launch: Launch, fault: str) -> None:
    """torchrun holds the store, and sends SIGTERM to all as soon as one process has ended."""
    port = f"--master-port={free_port()}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", port]
    launch.start_command([*torchrun, str(SCRIPT), fault, "1", SILENCE_S, LATENESS_S])
    assert launch.codes() == [1]
    if fault == "kill-early":
        assert re.match(r"process 1 of 2 \(.*\) stopped before the first iteration: it was killed", launch.message())
    else:
        check_message(launch, 1, 2, ".*")


@pytest.mark.slow
def test_a_process_that_does_not_start_is_named(launch: Launch) -> None:
    """Two of three are started."""
    start(launch, "none", 0, count=3, absent=(1,))
    assert 0 not in launch.codes()
    assert launch.printed().count("process 1 of 3 did not start within 12 s of process") == 1
    assert launch.printed().count("Traceback") == 1


def test_one_process_has_no_watchdog() -> None:
    """With one process nothing is started, and an error passes unchanged."""
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=r"^no number$"), joined(TimeoutsConfig()):
        assert threading.active_count() == threads
        with position.phase("rollout"):
            raise ConfigError("no number")
    assert position.name == ""


def test_the_command_line_prints_an_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process of the host prints it, or the watchdog has printed it; the exit code stays."""
    app = typer.Typer(cls=CommandGroup)
    error = ConfigError("no number")

    @app.command()
    def first() -> None:
        raise error

    @app.command()
    def second() -> None:
        """Make a group of the two."""

    assert "no number" in (seen := CliRunner().invoke(app, ["first"])).stderr and seen.exit_code == 2
    for rank in "01":
        for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", rank)):
            monkeypatch.setenv(name, value)
        assert ("no number" in (seen := CliRunner().invoke(app, ["first"])).stderr) == (rank == "0")
        assert seen.exit_code == 2
    monkeypatch.undo()
    error._mmrl_printed = True  # type: ignore[attr-defined]
    assert (seen := CliRunner().invoke(app, ["first"])).stderr == "" and seen.exit_code == 2
