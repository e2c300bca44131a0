"""A fault of one process in any phase ends all of them, with one message that names it; what was saved stays whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mmrl.training.run.checkpoints import Checkpoints, damage
from tests.distributed.group import Group, environments
from tests.distributed.test_checkpoints import HALVES, resume, start
from tests.training.fork_server import ForkServer
from tests.training.quickstart_run import SMALL, assert_same, write_data

PHASES = ("rollout", "reward", "update", "evaluate", "save")
KINDS = {"raise": "ValueError: injected", "kill": "it was killed", "freeze": "no sign of life", "hang": "waited for it"}
DAILY = [("kill", "update", 1), ("raise", "rollout", 0), ("freeze", "evaluate", 1)]
CASES = [(kind, phase, (number + place) % 2) for number, kind in enumerate(KINDS) for place, phase in enumerate(PHASES)]
FURTHER = [("memory", "update", 1), ("exit", "reward", 0), ("memory", "evaluate", 0), ("kill", "save", 0)]
QUICK = "run.timeouts={silence: 4, lateness: 6, start: 20}"
WORDS = ("quickstart", *SMALL, *HALVES)
ITERATION = 2
"""The iteration of the fault: one checkpoint is there."""


def start_faulty(fork_server: ForkServer, folder: Path, count: int, fault: tuple[str, str, int], *words: Any) -> Group:
    """Start a run in which one process has the fault."""
    write_data(folder)
    arguments = (*fault, ITERATION, *WORDS, *words)
    function = "tests.distributed.faulty_run:train"
    return Group([fork_server.call(folder, function, *arguments, environment=each) for each in environments(count)])


def check_end(group: Group, run: Path, fault: tuple[str, str, int], seconds: float) -> None:
    """Check that all ended within some seconds, with one message about the process at fault, and whole checkpoints."""
    kind, phase, rank = fault
    saved = ITERATION if (phase, rank) == ("save", 1) else ITERATION - 1  # process 0 alone writes checkpoints
    began = time.monotonic()
    group.children[0].await_text("step    1/4")
    assert all(code != 0 for code in group.wait()), group.output_text()
    assert time.monotonic() - began < seconds
    output = group.output_text()
    messages = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(messages) == 1, output
    (message,) = messages
    assert f"process {rank} of {len(group.children)} (" in message, message
    assert f"in phase {phase} of iteration {ITERATION}" in message, message
    assert KINDS.get(kind, "") in message, message
    assert f"the last checkpoint is of iteration {saved}; go on with: mmrl train --resume run" in message, message
    assert all(damage(folder) is None for folder in (run / "checkpoints").glob("step-*"))
    assert Checkpoints(run).load_state().step == saved


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, marks=[] if each in DAILY else [pytest.mark.slow], id=f"{each[0]} in {each[1]} of {each[2]}")
        for each in dict.fromkeys(DAILY + CASES + FURTHER)
    ],
)
def test_fault_of_one_process_ends_all_with_one_message(fork_server, tmp_path, fault):
    group = start_faulty(fork_server, tmp_path / "b", 2, fault, QUICK)
    check_end(group, tmp_path / "b/run", fault, seconds=40)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [("kill", "rollout", 1), ("freeze", "update", 1)])
def test_fault_ends_all_within_a_minute_with_the_usual_limits(fork_server, tmp_path, fault):
    group = start_faulty(fork_server, tmp_path / "b", 2, fault)
    check_end(group, tmp_path / "b/run", fault, seconds=60)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [("kill", "rollout", 2), ("raise", "update", 0), ("hang", "rollout", 1)])
def test_fault_of_one_of_three_processes(fork_server, tmp_path, fault):
    group = start_faulty(fork_server, tmp_path / "b", 3, fault, QUICK)
    check_end(group, tmp_path / "b/run", fault, seconds=40)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [("kill", "save", 0), ("raise", "update", 1), ("freeze", "rollout", 0)])
def test_run_resumes_exactly_after_a_fault(fork_server, tmp_path, fault):
    whole = start(fork_server, tmp_path / "a", 2, *HALVES, QUICK)
    assert whole.wait() == [0, 0], whole.output_text()
    group = start_faulty(fork_server, tmp_path / "b", 2, fault, QUICK)
    check_end(group, tmp_path / "b/run", fault, seconds=40)
    assert_same(tmp_path / "a/run", resume(fork_server, tmp_path / "b", 2))


def test_error_of_all_processes_is_one_message(fork_server, tmp_path):
    group = start(fork_server, tmp_path / "b", 2, *HALVES, "training.max_replay_gap=1e-30", "rewards=[{name: nothing}]")
    assert all(code != 0 for code in group.wait())
    assert group.output_text().count("error:") == 1, group.output_text()
