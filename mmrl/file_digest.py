"""`file_digest`: the SHA-256 of a file, which is read once as long as it does not change."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits.

    It is read once per process for each size and time of modification.
    """
    resolved = path.resolve()
    state = resolved.stat()
    return _digest(resolved, state.st_size, state.st_mtime_ns)


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    """Return the digest; `size` and `modified` make a replaced file another entry."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
