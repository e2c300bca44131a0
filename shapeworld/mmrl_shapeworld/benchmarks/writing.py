"""Helpers of the writers of benchmarks: JSON, pictures, and the parts of a question."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mmrl.data.media.uris import uri_bytes
from mmrl_shapeworld.vqa.canvas import Picture, png_uri


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A JSON Lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_picture(folder: Path, name: str, picture: Picture) -> str:
    """A PNG in a folder; returns its name."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(uri_bytes(png_uri(picture)))
    return name
