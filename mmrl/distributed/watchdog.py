"""No silent hang: when one process of a run ends, freezes or hangs, all end, with one message that names it.

    with watching(store, rank=1, count=2, timeouts=TimeoutsConfig()):
        position.iteration, position.saved, position.run = 4, 3, folder
        with position.phase("rollout"):
            ...

A thread of each process writes its position to the store every second and reads those of the others. Silence and
lateness are counted in these seconds, never by the clocks of different machines, and a suspended run does not count.
The first process that claims the key `failed` writes the message; the others leave with code 1. A second thread guards
the first one, for a call of the store does not return while the process that holds the store is frozen; without the
store, the processes agree on who writes the message by what they knew last.

An error of a collective call is taken for the end of another process, which is waited for. KeyboardInterrupt and
RunStopped are no failures: the first process raises them, the others leave with code 130.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mmrl.config.training import TimeoutsConfig
from mmrl.distributed.beats import Beats, write_beat
from mmrl.distributed.findings import Members
from mmrl.distributed.joining import claim, torchrun_holds_store, wait_for_members
from mmrl.distributed.member import Member
from mmrl.distributed.position import is_lost_connection, phase_of, position
from mmrl.errors import RunStopped
from mmrl.sigterm import EXIT_CODE, handling_sigterm

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

__all__ = ["Watchdog", "position", "watching"]

FAILED, STOPPED = 1, 130
"""Exit codes: after a failure of any process, and after a stop on request."""
STOP_PATIENCE_S = 3.0
"""The wait in a collective call after which a process leaves, once another one has stopped on request."""
FIRST_END_S = 3.0
"""The time in which a process that failed can print its traceback and end before the others."""

_sessions = itertools.count()


@contextmanager
def watching(store: TCPStore, rank: int, count: int, timeouts: TimeoutsConfig) -> Iterator[None]:
    """Watch the other processes, and be seen by them, while open.

    Raises:
        RunError: a process did not start in time.
        SystemExit: an error was raised here, and the message about the run's end is another process's.
    """
    watchdog = Watchdog(store, rank, count, timeouts)
    watchdog.start()
    try:
        with watchdog.handling_sigterm():
            try:
                yield
                watchdog.leave(everyone=rank == 0)
            except BaseException as err:
                code = watchdog.end(err)
                if code is None:
                    raise
                raise SystemExit(code) from err
    finally:
        watchdog.close()


class Watchdog:
    """The watch of one process over the others, through a store that the main thread alone uses beside it."""

    def __init__(self, store: TCPStore, rank: int, count: int, timeouts: TimeoutsConfig) -> None:
        from torch._C._distributed_c10d import PrefixStore  # absent where torch was built without torch.distributed

        prefix = f"mmrl-watch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_sessions)}"
        self._rank, self._timeouts = rank, timeouts
        self._others = [other for other in range(count) if other != rank]
        self._here = Member.here()
        self._known = Members(rank, [self._here] * count, timeouts.silence, timeouts.lateness)
        # A connection for each thread: one that waits for an answer would make the other wait.
        self._main = PrefixStore(prefix, store)
        self._store = PrefixStore(prefix, store.clone())  # type: ignore[attr-defined]
        self._address = f"{store.host}:{store.port}"
        self._line = socket.create_connection((store.host, store.port), timeout=timeouts.start)
        self._line.setblocking(False)
        self._beats = Beats(self._store, self._line, self._known, self._leaves)
        self._interval = min(1.0, timeouts.silence / 5)
        self._left_round: int | None = None  # the first round that sends that this process leaves
        self._stuck = 0.0  # seconds since the last round
        self._code: int | None = None  # this process leaves with it
        self._ends = self._lost = self._stopped = False
        self._thread: threading.Thread | None = None
        self._wake, self._over = threading.Event(), threading.Event()

    def start(self) -> None:
        """Wait until every process is here; then watch."""
        write_beat(self._main, self._rank, self._beats.own())  # before the others see this process
        count = len(self._others) + 1
        self._known.members = wait_for_members(self._main, self._rank, count, self._timeouts.start)
        self._thread = threading.Thread(target=self._watch, name="mmrl_watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._guard, name="mmrl_guard", daemon=True).start()

    def close(self) -> None:
        """End the threads."""
        self._over.set()
        self._wake.set()
        if self._thread:
            self._thread.join(self._interval)
        self._line.close()

    @contextmanager
    def handling_sigterm(self) -> Iterator[None]:
        """Raise SystemExit at SIGTERM while open, but first look whether another process has ended.

        torchrun sends SIGTERM to all processes as soon as one has ended: before any of them may have seen that.
        """

        def handle() -> None:
            if not self._ends and self._left_round is None:
                time.sleep(1.0 + 2 * self._interval)
                raise SystemExit(EXIT_CODE)

        with handling_sigterm(handle):
            yield

    def end(self, error: BaseException) -> int | None:
        """Tell the others that an error ends this process, and print the message if this is the first one.

        Returns:
            None if the error shall be raised here, otherwise the exit code of a process that says nothing.
        """
        if self._left_round is not None:  # interrupted while it left
            return STOPPED if self._stopped else None
        self._ends = True
        if isinstance(error, (KeyboardInterrupt, RunStopped)):
            first = self._claim(self._main, "stopped")
            self.leave(everyone=True)
            return None if first else STOPPED
        if is_lost_connection(error):
            last = time.monotonic() + self._timeouts.silence + 3 * self._interval
            while time.monotonic() < last and not self._stopped:
                time.sleep(0.1)  # the watchdog ends this process once it knows which one is gone
            if self._stopped:
                self.leave(everyone=self._rank == 0)
                return STOPPED
        if not self._claim(self._main, "failed"):
            self.leave(everyone=self._rank == 0)
            return FAILED
        self._known.beats[self._rank] = self._beats.own()
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit) and error.code == EXIT_CODE:
            reason = "SIGTERM came"
        self._print(self._known.sentence(self._rank, "stopped", reason, phase_of(error) or None))
        error._mmrl_printed = True  # type: ignore[attr-defined]
        timer = threading.Timer(self._timeouts.silence, os._exit, (FAILED,))  # if the way out hangs
        timer.daemon = True
        timer.start()
        self.leave(everyone=self._rank == 0)
        return FAILED if isinstance(error, SystemExit) and not error.code else None

    def leave(self, everyone: bool) -> None:
        """Send that this process leaves; with `everyone`, wait until the others do: process 0 may hold the store."""
        self._left_round = self._beats.rounds + 2  # a round may be under way
        self._wake.set()
        last = time.monotonic() + self._timeouts.lateness
        while not self._lost and time.monotonic() < last:
            sent = self._beats.rounds >= self._left_round
            if sent and (not everyone or self._known.is_alone(self._others)):
                return
            time.sleep(0.02)

    def _watch(self) -> None:
        try:
            while not self._over.is_set():
                seconds = self._pause()
                if not self._over.is_set():
                    self._beats.check_line()
                    self._round(seconds)
        except (RuntimeError, OSError):  # the first are those of torch.distributed
            self._lost = True

    def _pause(self) -> float:
        """Wait until the next round and return its seconds; send a change of the position meanwhile."""
        if self._left_round is not None:
            time.sleep(0.05)
            return 0.05
        for _ in range(10):
            if self._wake.wait(self._interval / 10):
                break
            self._beats.send_change()
        return self._interval

    def _round(self, seconds: float) -> None:
        self._beats.next_round(seconds)
        self._stuck = 0.0
        if self._store.check(["failed"]):
            first = int(self._store.get("failed"))
            if first != self._rank:
                self._exit(FAILED, after=self._known.members[first])
            return
        if self._store.check(["stopped"]):
            self._stopped = True
            if self._left_round is None and self._beats.waited >= STOP_PATIENCE_S:
                self._exit(STOPPED)
        found = self._known.finding(self._others)
        if found and self._claim(self._store, "failed"):
            self._beats.exchange(0.0)  # the last position of the others
            self._print(self._known.finding(self._others) or found)
            self._exit(FAILED)

    def _leaves(self) -> bool:
        return self._code is not None or self._left_round is not None

    def _guard(self) -> None:
        while not self._over.wait(self._interval):
            self._stuck += self._interval
            if self._code is not None and self._stuck >= self._timeouts.silence:
                os._exit(self._code)
            if self._lost or self._stuck >= self._timeouts.silence:
                self._end_without_store()

    def _end_without_store(self) -> None:
        """End this process, because the store is gone: process 0 holds it, or torchrun beside process 0."""
        if self._code is not None or self._stopped:
            os._exit(STOPPED if self._code is None else self._code)
        if self._left_round is not None:
            self._lost = True
            return
        reason = f"it gave no sign of life for {self._timeouts.silence:g} s"
        if self._lost:
            reason = f"it was killed, or its host was lost: the store at {self._address} is gone"
        if torchrun_holds_store():
            reason = f"the store of torchrun at {self._address} cannot be reached"
        if self._known.speaker(torchrun_holds_store(), self._here) == self._rank:
            self._known.beats[self._rank] = self._beats.own()  # it may know of a later checkpoint than the last round
            subject = self._rank if torchrun_holds_store() else 0
            self._print(self._known.sentence(subject, "stopped", reason))
            time.sleep(3 * self._interval)  # a process that saw this one end would take it for another loss
        if not torchrun_holds_store():
            self._known.members[0].kill(self._here)
        os._exit(FAILED)

    def _exit(self, code: int, after: Member | None = None) -> None:
        """Leave from this thread; process 0 leaves last, for it may hold the store.

        A process that fails first ends first, if that can be seen: torchrun names the first end as the cause, and ends
        the others at once, which may still print a traceback.
        """
        self._code = code
        self._kill_gone()
        self._wake.clear()
        seconds, step = 0.0, self._interval / 5
        with suppress(RuntimeError):
            while seconds < self._timeouts.silence:
                if seconds == 0 or self._rank == 0:  # afterwards the store may end before this process
                    self._beats.exchange(step)
                patience = 0.0 if after is None or after.has_ended(self._here) else FIRST_END_S
                if seconds >= patience and (self._rank or self._known.is_alone(self._others)):
                    break
                time.sleep(step)
                seconds += step
        self._kill_gone()  # one that was late may have turned out to be silent
        os._exit(code)

    def _kill_gone(self) -> None:
        """Kill the silent processes of this machine: a frozen one cannot leave by itself."""
        for other in self._known.gone(self._others):
            self._known.members[other].kill(self._here)

    def _claim(self, store: Store, key: str) -> bool:
        """Return True if this process is the first one to claim the key."""
        try:
            return claim(store, key, self._rank)
        except RuntimeError:
            self._lost = True
            time.sleep(self._timeouts.silence)  # the guard ends this process before
            return False

    def _print(self, message: str) -> None:
        """Write a line to stderr at once: a buffer or a lock could keep it past the end of the process."""
        with suppress(OSError):
            os.write(2, f"error: {message}\n".encode())
