"""The place where this process is: its iteration and phase, its last checkpoint, and the collective call it waits in.

The training loop writes to `position`; the watchdog of a run with several processes sends it to the others, so that a
message about a process that ended says where it was. Writing costs nothing with one process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Position:
    """The place of one process in a run. Written by its main thread, read by its watchdog."""

    def __init__(self) -> None:
        self.iteration: int | None = None
        """The iteration that is computed; None before the first one."""
        self.saved: int | None = None
        """The iteration of the last checkpoint; None if there is none."""
        self.run: Path | None = None
        """The run folder."""
        self.name = ""
        """The innermost open phase; empty outside any."""
        self.wait: tuple[str, int] | None = None
        """The collective call that waits for the other processes, with the number of the wait."""
        self._waits = itertools.count()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Be in a phase while open; an error that leaves it remembers the innermost one."""
        outer, self.name = self.name, name
        try:
            yield
        except BaseException as err:
            if not hasattr(err, "_mmrl_phase"):
                with suppress(AttributeError):  # a class with slots
                    err._mmrl_phase = name  # type: ignore[attr-defined]
            raise
        finally:
            self.name = outer

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Wait for the other processes while open: around every collective call.

        A collective call that fails leaves this process waiting, because another one is to blame.
        """
        outer, self.wait = self.wait, (name, next(self._waits))
        try:
            yield
        except RuntimeError as err:
            err._mmrl_collective = name  # type: ignore[attr-defined]
            raise
        except BaseException:
            self.wait = outer
            raise
        self.wait = outer


def phase_of(error: BaseException) -> str:
    """Return the phase in which an error or one of its causes was raised; empty if it was outside any."""
    return next((str(each._mmrl_phase) for each in _chain(error) if hasattr(each, "_mmrl_phase")), "")


def is_lost_connection(error: BaseException) -> bool:
    """Return True if a collective call failed, as it does when another process has ended."""
    from torch.distributed import DistError

    return any(
        hasattr(each, "_mmrl_collective")
        or isinstance(each, DistError)
        or (isinstance(each, RuntimeError) and any(words in str(each) for words in LOST))
        for each in _chain(error)
    )


LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "ProcessGroup")
"""Parts of the messages of errors that calls of torch.distributed raise in C++, without a class."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


position = Position()
"""The place of this process."""
