"""Atomic and durable writes.

A file is written under a temporary name beside its place and renamed, so that a reader finds the old content or the new
one, never a part of it. A durable write is also synced to disk, so that this holds after a power cut.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` on success and delete it on an error.

    Several threads and processes may replace a file at once, but only one durably: its temporary name is the same in
    every process, so that the next write removes what a killed process left.
    """
    draft = path.with_name(f".{path.name}.tmp" if durable else f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with named_in_errors(path, draft):
            yield draft
            if durable:
                _sync_file(draft)
            draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


@contextmanager
def named_in_errors(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Give an `OSError` of the draft, or that names no file, as that of a full disk does, the name of the file."""
    try:
        yield
    except OSError as err:
        if err.errno is not None and err.filename in (None, str(draft or path)):
            err.filename = str(path)
        raise


def replace_text(path: Path, text: str, durable: bool = False, errors: str = "strict") -> Path:
    """Write a text file atomically in UTF-8 and return its path; `errors` is that of `str.encode`."""
    with replacing(path, durable) as draft:
        draft.write_text(text, encoding="utf-8", errors=errors)
    return path


def append_durably(path: Path, content: bytes) -> None:
    """Append to a file and sync it to disk.

    Raises:
        OSError: the content cannot be written; the file ends where it ended before.
    """
    with named_in_errors(path), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, content)
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def sync_tree(folder: Path) -> None:
    """Sync all files and folders below a folder to disk, and the folder itself."""
    for here, _, names in os.walk(folder):
        for name in names:
            _sync_file(Path(here, name))
        sync_folder(Path(here))


def sync_folder(folder: Path) -> None:
    """Sync a folder's list of names to disk, without which a rename is not durable."""
    if os.name == "nt":  # Windows opens no folders, and writes renames through
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _write_all(file: io.FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) :]
