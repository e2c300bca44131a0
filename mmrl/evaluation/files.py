"""Files of results, which may be read while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> Path:
    """Write a text at once: a reader finds the old one or the new one. Half a letter of a prompt is escaped."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    draft.replace(path)
    return path
