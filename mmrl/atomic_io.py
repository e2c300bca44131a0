"""Files that survive a kill and a power cut: whole and on the disk, or not there."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a text file at once: whoever reads it, even after a crash, finds the old text or the new one."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Put all files and folders below on the disk, and the folder itself."""
    for here, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(here, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(here))


def sync_folder(folder: Path) -> None:
    """Put a folder's list of names on the disk: a rename is lasting only then."""
    if os.name == "nt":  # which opens no folders, and writes renames through
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Files of results, which may be read while they are written.


def replace_file(path: Path, text: str) -> Path:
    """Write a text at once: a reader finds the old one or the new one. Half a letter of a prompt is escaped."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    draft.replace(path)
    return path
