"""The real program, started a hundred times for the price of one import: a server that forks itself for each run.

Run as `python -m tests.training.fork_server SOCKET`; it imports everything, and forks a server for each worker that
connects, which speaks JSON lines. A test kills a child, which has separate files, limits and user.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

WRITING = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
PATIENCE_S = 300
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Child:
    """A command that runs in a separate process."""

    fork_server: ForkServer
    pid: int
    output: Path
    code: int | None = None

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        if self.code is None:
            self.code = self.fork_server.ask({"wait": self.pid})
        return self.code

    def output_text(self) -> str:
        """Return everything that the process printed."""
        return self.output.read_text()

    def await_text(self, text: str) -> None:
        """Return once it has printed this."""
        self.await_match(f"({re.escape(text)})")

    def await_match(self, pattern: str) -> str:
        """Return what the group of a pattern is, once it has printed a match."""
        end = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.output_text())) is None:
            assert time.monotonic() < end, f"never printed {pattern!r}:\n{self.output_text()}"
            time.sleep(0.005)
        return found[1]


@dataclass
class ForkedModule:
    """A function or module that runs in a separate process: what is used of `subprocess.Popen`."""

    fork_server: ForkServer
    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.code is None:
            self.code = self.fork_server.ask({"poll": self.pid})
        return self.code

    def wait(self) -> int:
        """The exit code, once it has ended."""
        if self.code is None:
            self.code = self.fork_server.ask({"wait": self.pid})
        return self.code

    def terminate(self) -> None:
        """Ask it to end."""
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)


class ForkServer:
    """The server, seen from a test."""

    def __init__(self, address: Path) -> None:
        """Connect to the process that listens at a socket, or start it: several workers share its imports."""
        self._address = address
        self._listener: subprocess.Popen[bytes] | None = None
        with address.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = _connected(address)
            if connection is None:
                command = [sys.executable, "-m", "tests.training.fork_server", str(address)]
                self._listener = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
                while (connection := _connected(address)) is None:
                    assert self._listener.poll() is None, "the server of forks ended while it imported"
                    time.sleep(0.02)
        self._connection, self._lines = connection, connection.makefile("rw")
        self._children = 0

    def ask(self, question: dict[str, Any]) -> Any:
        """Send a line and read one."""
        self._lines.write(json.dumps(question) + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline())

    def start(self, folder: Path, *words: object, **orders: Any) -> Child:
        """Start `mmrl WORDS` in a folder; see `_prepare` for what can be ordered."""
        return self._start(folder, {"mmrl": [str(word) for word in words], **orders})

    def call(self, folder: Path, function: str, *arguments: Any, **orders: Any) -> Child:
        """Start `module:function` with arguments fit for JSON."""
        return self._start(folder, {"function": function, "arguments": arguments, **orders})

    def script(self, folder: Path, path: Path, *words: str) -> Child:
        """Start `python PATH WORDS` in a folder."""
        return self.call(folder, "tests.training.fork_server:run_script", str(path), *words)

    def popen(self, command: Sequence[str], stdout: IO[bytes], env: Mapping[str, str], **_: Any) -> ForkedModule:
        """Start `python -m MODULE WORDS` as `subprocess.Popen` does, with all its output at the end of a file."""
        python, option, *words = command
        assert (python, option) == (sys.executable, "-m")
        assert env == os.environ | dict.fromkeys(THREADS, "1"), "it has the environment of the server"
        order = {"function": "tests.training.fork_server:run_module", "arguments": words}
        return ForkedModule(self, self.ask({"cwd": str(Path.cwd()), "output": stdout.name, **order}))

    def background(self, function: str, *arguments: Any) -> ForkedModule:
        """Start `module:function` with arguments fit for JSON, which prints to the errors of this process."""
        order = {"function": function, "arguments": arguments, "cwd": str(Path.cwd()), "output": "/dev/stderr"}
        return ForkedModule(self, self.ask(order))

    def close(self) -> None:
        """End the server of this worker, and what it was forked from if this worker started it."""
        self._lines.close()
        self._connection.close()
        if self._listener is not None:
            self._listener.terminate()
            self._listener.wait()
            for file in (self._address, self._address.with_suffix(".lock")):
                file.unlink(missing_ok=True)

    def _start(self, folder: Path, question: dict[str, Any]) -> Child:
        folder.mkdir(parents=True, exist_ok=True)
        self._children += 1
        output = folder.parent / f"{folder.name}-{self._children}.txt"
        output.touch(mode=0o666)
        return Child(self, self.ask({"cwd": str(folder), "output": str(output), **question}), output)


@cache
def own_fork_server() -> ForkServer:
    """Return the server of this process, which ends with it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    server = ForkServer(Path(tempfile.gettempdir()) / f"mmrl-tests-{run}")
    atexit.register(server.close)
    return server


def _connected(address: Path) -> socket.socket | None:
    """Return a connection to the process that listens at a socket; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(address))
    except OSError:
        connection.close()
        return None
    return connection


def listen(address: Path) -> None:
    """Import everything, then fork a server for every connection, until the process that started this one ends.

    The collector does not run meanwhile, and passes over what was imported, so that a child copies none of its pages.
    """
    parent = os.getppid()
    gc.disable()
    for name in (
        "mmrl.workflows.train",
        "mmrl.workflows.generate_images",
        "mmrl.cli",
        "mmrl.evaluation.final_summary",
        "tests.training.conftest",
    ):
        importlib.import_module(name)
    from diffusers import DiffusionPipeline

    from mmrl_shapeworld.shipped_models import PIPELINE

    DiffusionPipeline.from_pretrained(PIPELINE)  # what it imports, it imports once
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        unfinished = address.with_suffix(".new")  # whoever finds the address can connect at once
        listening.bind(str(unfinished))
        listening.listen()
        listening.settimeout(1.0)
        unfinished.rename(address)
        while os.getppid() == parent:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listening.close()
                connection.setblocking(True)
                serve(connection)
                os._exit(0)
            connection.close()


def serve(connection: socket.socket) -> None:
    """Fork for every line that comes, and answer it."""
    lines = connection.makefile("rw")
    for line in lines:
        question = json.loads(line)
        if "poll" in question:
            found, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if found else None
        else:
            answer = _reap(question["wait"]) if "wait" in question else _fork(question, connection)
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


def run_script(path: str, *words: str) -> None:
    """Run a script as `python PATH WORDS` does."""
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))  # as python does; run_path does not
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()  # a child ends without the interpreter's goodbye


def run_module(module: str, *words: str) -> None:
    """Run a module as `python -m MODULE WORDS` does."""
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()


def _reap(pid: int) -> int:
    end = time.monotonic() + PATIENCE_S
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(found[1])


def _fork(question: dict[str, Any], connection: socket.socket) -> int:
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.close(connection.fileno())
        gc.enable()
        _prepare(question)
        if "function" in question:
            module, _, name = question["function"].partition(":")
            getattr(importlib.import_module(module), name)(*question["arguments"])
            code = 0
        else:
            sys.argv = ["mmrl", *question["mmrl"]]
            from mmrl.cli import main

            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))  # `largest_file` would end the output, too
        traceback.print_exc()
    finally:
        os._exit(code)


def _prepare(order: dict[str, Any]) -> None:
    """Set up a process as ordered: folder, output, Ctrl-C as in a terminal; optionally unprivileged or with less room.

    `signals`: sent to itself, one by one, just before its `at`th change of a file or folder (from 1), or before the
    first one whose path holds `at`; compiled modules do not count. `count_changes`: print them. `largest_file`: bytes.
    `unprivileged`: drops root. `unread`: its output goes into a closed pipe. `environment`: variables to set.
    """
    os.environ.update(order.get("environment", {}))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    if order.get("unread"):
        reader, output = os.pipe()
        os.close(reader)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    if order.get("unprivileged") and os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    if room := order.get("largest_file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if order.get("signals") or order.get("count_changes"):
        _watch_changes(order.get("at"), order.get("signals", []), order.get("count_changes", False))


def _watch_changes(at: int | str | None, signals: list[int], tell: bool) -> None:
    changes, left = 0, list(signals)
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        if arguments and ("__pycache__" in str(arguments[0]) or isinstance(arguments[0], int)):
            return  # compiled by whoever imports a module first, with a descriptor of the file that was just opened
        if event in WRITING or (event == "open" and isinstance(arguments[2], int) and arguments[2] & writing):
            changes += 1
            if tell:
                os.write(1, f"\nchange {changes} {event} {arguments[0]}\n".encode())
            if left and (changes == at or (isinstance(at, str) and at in f"{event} {arguments[0]}")):
                now, left[:] = list(left), []
                for number in now:
                    os.kill(os.getpid(), number)
                    time.sleep(0)  # a handler runs before the next is sent

    sys.addaudithook(hook)


if __name__ == "__main__":
    listen(Path(sys.argv[1]))
