"""One process at a time writes into a run folder."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmrl.errors import RunError

LOCK = ".lock"

logger = logging.getLogger(__name__)


@contextmanager
def only_writer(run: Path) -> Iterator[None]:
    """While open, no other process can open it on the same run folder, which is made if need be.

    The operating system holds the lock, and drops it with the process and those it forked, however they end.

    Raises:
        RunError: another process has it.
    """
    run.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # it has no flock
        yield
        return
    import fcntl

    with (run / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(
                f"{run} is being written by another process ({file.read().strip()}): wait for it, end it, or train "
                "into another folder with run.dir=..."
            ) from None
        except OSError as err:
            if err.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            logger.warning("%s cannot be locked (%s): start no second process on it", run, err.strerror)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        yield
