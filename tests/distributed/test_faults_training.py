"""Faults in a real training run of several processes: all end in time, with one message that says who, where and when.

After each fault the checkpoints are whole, and a resumed run has the files of an uninterrupted one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from mmrl.training.run.checkpoints import damage
from tests.distributed.group import Group, environments
from tests.training.fork_server import ForkServer
from tests.training.quickstart_run import SMALL, assert_same, write_data

REWARD = Path(__file__).with_name("faulty_reward.py")
SHORT = "{silence: 4, lateness: 6, start: 15}"
WORDS = (
    "train", "quickstart", *SMALL, "data.micro_batch=2", "evaluation.batch=1", "training.min_valid_share=0.9",
    f"rewards=[{{name: '{REWARD}:Brightness'}}]",
)  # fmt: skip
DRAWS = (
    "sampling={steps: 4, window: {}, transition: {name: flow_sde, noise_level: 0.5}}",
    "algorithm={name: grpo, advantage: {std: batch}}",
)
LIKELIHOOD = (
    "train", "flow-grpo", *(word for word in WORDS[2:] if "num_noise_levels" not in word), *DRAWS
)  # fmt: skip
"""The same with log-probabilities, which a rollout has and an update repeats."""
LIMIT_S = 60.0
ANY = r"\d"
KILLED = "it was killed"
SILENT = "it gave no sign of life for"


@dataclass(frozen=True)
class Case:
    """A fault of one process, and what the message says of it."""

    fault: str
    """Act, phase and iteration, as `faulty_reward` reads them."""
    rank: int
    where: str
    """The place that the message names."""
    reason: str
    named: str | None = None
    """The process that the message names, if another one may be named: where all see the same."""
    count: int = 2
    timeouts: str = SHORT
    resumed: bool = False
    words: tuple[str, ...] = WORDS


UPDATE_3, REWARD_2 = "in phase update of iteration 3", "in phase reward of iteration 2"
EVALUATE_2, SAVE_3 = "in phase evaluate of iteration 2", "in phase save of iteration 3"
ROLLOUT_3 = "in phase rollout of iteration 3"
LAGGED_3 = r"in phase \w+ of iteration [34]"
"""The model may be called by the thread that samples, during the update of iteration 3."""
DAILY = {
    "kill 0 in update": Case("kill update 3", 0, UPDATE_3, KILLED, resumed=True),
}
FURTHER = {
    "hang 1 in reward": Case("hang reward 2", 1, REWARD_2, "the others have waited for it for 6 s"),
    "kill 1 in update": Case("kill update 3", 1, UPDATE_3, KILLED, resumed=True),
    "kill 0 in rollout": Case("kill rollout 3", 0, ROLLOUT_3, KILLED),
    "kill 1 in reward": Case("kill reward 2", 1, REWARD_2, KILLED),
    "kill 2 of 3 in rollout": Case("kill rollout 3", 1, ROLLOUT_3, KILLED, count=3),
    "kill 1 in first evaluation": Case("kill evaluate None", 1, "in phase evaluate", KILLED),
    "freeze 0 in reward": Case("freeze reward 2", 0, REWARD_2, SILENT),
    "freeze 1 in evaluate": Case("freeze evaluate 2", 1, EVALUATE_2, SILENT, resumed=True),
    "freeze 1 in update": Case("freeze update 3", 1, UPDATE_3, SILENT),
    "hang 0 in rollout": Case("hang rollout 3", 0, ROLLOUT_3, "the others have waited for it for 6 s"),
    "hang 1 in evaluate": Case("hang evaluate 2", 1, EVALUATE_2, "the others have waited for it for 6 s"),
    "raise 1 in rollout": Case("raise rollout 3", 1, ROLLOUT_3, "ValueError: the disc of the scorer broke"),
    "raise 0 in evaluate": Case("raise evaluate 2", 0, EVALUATE_2, "ValueError: the disc of the scorer broke"),
    "memory 1 in update": Case("memory update 3", 1, UPDATE_3, "MemoryError: no room for the scorer"),
    "raise in reward": Case(
        "raise reward 2", 1, REWARD_2, "RunError: only 50% of the answers .* disc of the scorer", ANY
    ),
    "memory in reward": Case("memory reward 2", 1, REWARD_2, "RunError: only 50% of the answers .* no room", ANY),
    "nan in reward": Case("nan reward 2", 1, REWARD_2, "RunError: only 50% of the answers", ANY),
    "exit in reward": Case("exit reward 2", 1, REWARD_2, "SystemExit: the scorer gave up"),
    "nan gradients": Case("nan update 3", 1, UPDATE_3, "RunError: the gradient's norm is nan", ANY),
    "changed weights": Case("change reward 3", 1, UPDATE_3, "RunError: replay differs", ANY, words=LIKELIHOOD),
    "kill 0 in save": Case("kill save 3", 0, SAVE_3, KILLED, resumed=True),
    "freeze 0 in save": Case("freeze save 3", 0, SAVE_3, SILENT),
    "hang 0 in save": Case("hang save 3", 0, SAVE_3, "the others have waited for it for 6 s"),
    "full disk": Case("full update 3", 0, SAVE_3, "RunError: the checkpoint run/checkpoints/step-3 cannot be written"),
    "kill 1 with a lag": Case("kill update 3", 1, LAGGED_3, KILLED, words=(*WORDS, "run.overlap.lag=1")),
    "raise 1 with a lag": Case(
        "raise update 3", 1, LAGGED_3, "ValueError: the disc of the scorer broke", words=(*WORDS, "run.overlap.lag=1")
    ),
    "kill while loading": Case("kill load None", 1, "before the first iteration", KILLED),
    "raise while loading": Case("raise load None", 1, "before the first iteration", ".*the disc of the scorer broke"),
    "default kill": Case("kill update 3", 0, UPDATE_3, KILLED, timeouts="{}"),
    "default freeze": Case("freeze rollout 3", 1, ROLLOUT_3, SILENT, timeouts="{}"),
}
"""Slow: the watch is the same in all phases, and two of them are tried in every test run."""


@pytest.fixture(scope="module")
def whole(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of an uninterrupted run of two processes."""
    folder = tmp_path_factory.mktemp("whole") / "a"
    group = start(fork_server, folder)
    assert group.wait() == [0, 0], group.output_text()
    return folder / "run"


def start(
    fork_server: ForkServer,
    folder: Path,
    *changes: str,
    count: int = 2,
    words: tuple[str, ...] = WORDS,
    orders: dict[int, dict] | None = None,  # by rank, as `ForkServer.start` takes them
    variables: dict[int, dict[str, str]] | None = None,  # by rank
    changes_of: dict[int, tuple[str, ...]] | None = None,  # by rank
    folders: dict[int, Path] | None = None,  # by rank
    absent: tuple[int, ...] = (),
    timeouts: str = SHORT,
) -> Group:
    """Start the processes of a run."""
    if not (folder / "data.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
    return Group(
        [
            fork_server.start(
                (folders or {}).get(rank, folder),
                *words,
                f"run.timeouts={timeouts}",
                *changes,
                *(changes_of or {}).get(rank, ()),
                environment=environment | (variables or {}).get(rank, {}),
                **(orders or {}).get(rank, {}),
            )
            for rank, environment in enumerate(environments(count))
            if rank not in absent
        ]
    )


def message_of(group: Group, since: float | None = None, tracebacks: int = 0) -> str:
    """Wait until all have ended; return the one message, after checking that there is no other and that it was in time.

    `since` is the moment of the fault; unset, it is now.
    """
    started = time.time() if since is None else since
    codes = group.wait()
    seconds = time.time() - started
    text = group.output_text()
    found = re.findall(r"^error: (.*)", text, flags=re.MULTILINE)
    print(f"{seconds:.1f} s, exit codes {codes}: {found}")
    assert 0 not in codes, text
    assert seconds < LIMIT_S, text
    assert len(found) == 1 and text.lower().count("error: process") <= 1, text
    assert text.count("Traceback (most") <= tracebacks, text
    return str(found[0])


def check_place(message: str, rank: int | str, where: str, reason: str, count: int = 2) -> None:
    """Check that a message names the process, its place and the reason."""
    place = rf"process {rank} of {count} \(\S+, pid \d+\) \w+ {where}.*: {reason}"
    assert re.match(place, message), message


def check_checkpoints(folder: Path, message: str) -> None:
    """Check that all checkpoints are whole, and that the message names the last one."""
    steps = sorted((folder / "run/checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    assert [damage(path) for path in steps] == [None] * len(steps)
    last = "no checkpoint was written yet"
    if steps:
        last = f"the last checkpoint is of iteration {steps[-1].name[5:]}; go on with: mmrl train --resume run"
    assert message.endswith(last), message


def check_resumed(fork_server: ForkServer, folder: Path, whole: Path) -> None:
    """Check that a resumed run ends with the files of an uninterrupted one."""
    group = start(fork_server, folder, words=("train", "--resume", "run"))
    assert group.wait() == [0, 0], group.output_text()
    assert_same(whole, folder / "run")


@pytest.mark.integration
@pytest.mark.parametrize("name", [*DAILY, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def test_fault_of_one_process(fork_server: ForkServer, tmp_path: Path, name: str, request) -> None:
    """Give one process a fault; the message names it, its phase, its iteration and the last checkpoint."""
    case = (DAILY | FURTHER)[name]
    moment, folder = tmp_path / "moment", tmp_path / "b"
    variables = {case.rank: {"FAULT": case.fault, "FAULT_TIME": str(moment)}}
    group = start(fork_server, folder, words=case.words, count=case.count, timeouts=case.timeouts, variables=variables)
    await_file(moment, group)
    # An error that no user can act on, such as a reward's own, keeps the traceback of its process.
    message = message_of(group, moment.stat().st_mtime, tracebacks=1)
    check_place(message, case.named or case.rank, case.where, case.reason, case.count)
    check_checkpoints(folder, message)
    if case.resumed:
        check_resumed(fork_server, folder, request.getfixturevalue("whole"))


def await_file(path: Path, group: Group) -> None:
    """Return once a file exists."""
    last = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < last, group.output_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_kill_at_once_while_saving(fork_server: ForkServer, whole: Path, tmp_path: Path) -> None:
    """Process 0 is killed at the first file of a checkpoint. Its last known place is up to a second old."""
    at = "open run/checkpoints/.step-2.tmp/trainer"
    message = message_of(start(fork_server, tmp_path / "b", orders={0: {"signals": [signal.SIGKILL], "at": at}}))
    check_place(message, 0, "(in |before the first iteration)", KILLED)
    check_checkpoints(tmp_path / "b", message)
    check_resumed(fork_server, tmp_path / "b", whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "number", "reason"),
    [(0, signal.SIGKILL, KILLED), (1, signal.SIGKILL, KILLED), (1, signal.SIGSTOP, SILENT)],
)
def test_signal_from_outside(fork_server: ForkServer, tmp_path: Path, rank: int, number: int, reason: str) -> None:
    """A signal comes at any moment after an iteration was printed. The last known place is up to a second old."""
    group = start(fork_server, tmp_path / "b")
    group.children[0].await_text("step    1/4")
    group.children[rank].send(number)
    message = message_of(group)
    check_place(message, rank, "(in |before the first iteration)", reason)
    check_checkpoints(tmp_path / "b", message)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_process_that_never_starts(fork_server: ForkServer, tmp_path: Path, rank: int) -> None:
    """The other one waits for the limit of the recipe, and says which one is missing, or that nothing answers."""
    message = message_of(start(fork_server, tmp_path / "b", absent=(rank,)))
    expected = {0: r"process 1 could not reach the store at \S+: ", 1: r"process 1 of 2 did not start within 15 s"}
    assert re.match(expected[rank], message), message
    assert not (tmp_path / "b/run").exists()


@pytest.mark.slow
def test_process_that_starts_too_late(fork_server: ForkServer, tmp_path: Path) -> None:
    """The first one has ended when it comes, so that each has one message about the other."""
    words, limits = WORDS, "run.timeouts={silence: 4, lateness: 6, start: 4}"
    write_data(tmp_path)
    first, second = environments(2)
    early = Group([fork_server.start(tmp_path / "b", *words, limits, "data.path=../data.jsonl", environment=first)])
    assert "process 1 of 2 did not start within 4 s of process 0" in message_of(early)
    late = Group([fork_server.start(tmp_path / "b", *words, limits, "data.path=../data.jsonl", environment=second)])
    assert message_of(late).startswith("process 1 could not reach the store")


@pytest.mark.slow
def test_data_missing_for_one_process(fork_server: ForkServer, tmp_path: Path) -> None:
    """Process 1 runs on a machine without the data."""
    group = start(fork_server, tmp_path / "b", folders={1: tmp_path / "elsewhere"})
    message = message_of(group)
    check_place(message, 1, "before the first iteration", "DataError: .*data.jsonl")


@pytest.mark.slow
def test_other_recipe_of_one_process(fork_server: ForkServer, tmp_path: Path) -> None:
    """Process 1 was started with another learning rate."""
    message = message_of(start(fork_server, tmp_path / "b", changes_of={1: ("optimizer.lr=0.002",)}))
    check_place(message, ANY, "before the first iteration", r"ConfigError: optimizer.lr is 0.002 in process 1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [("optimizer.lr=-1", "optimizer.lr"), ("rewards=[{name: nowhere.py:Reward}]", "nowhere.py: no such file")],
)
def test_error_of_all_processes(fork_server: ForkServer, tmp_path: Path, change: str, reason: str) -> None:
    """Every process raises the same error."""
    message = message_of(start(fork_server, tmp_path / "b", change))
    assert re.search(reason, message), message


@pytest.mark.integration
def test_damaged_checkpoint_at_resume(fork_server: ForkServer, whole: Path, tmp_path: Path) -> None:
    """Every process reads that the last checkpoint is damaged; one says so, with the way on."""
    shutil.copytree(whole.parent, tmp_path / "b")
    file = tmp_path / "b/run/checkpoints/step-4/trainer/parameters.safetensors"
    os.truncate(file, 100)
    message = message_of(start(fork_server, tmp_path / "b", words=("train", "--resume", "run")))
    check_place(message, ANY, "in phase resume", r"RunError: \S+parameters.safetensors is damaged")
