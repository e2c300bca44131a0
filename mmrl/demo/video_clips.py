"""Videos side by side under one control, and the video files in a run's folder."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

FRAMES_PER_SECOND = 8
SMALLEST = 192  # pixels to which the shorter side of a tiny video is enlarged, so that its codec keeps its pixels
SUFFIXES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MOST_CLIP_BYTES = 16 * 2**20  # of one file


@dataclass(frozen=True)
class Clip:
    """A video file in memory."""

    title: str
    content: bytes
    kind: str  # its media type


def encode_clip(title: str, frames: Sequence[Image.Image]) -> Clip:
    """Return the frames as an MP4 in which browsers can seek to every frame."""
    first = frames[0].convert("RGB")
    factor = max(1, -(-SMALLEST // min(first.size)))
    width, height = (side * factor + (side * factor) % 2 for side in first.size)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"crf": "12", "g": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = Fraction(1, FRAMES_PER_SECOND)
        for frame in frames:
            picture = np.asarray(frame.convert("RGB").resize((width, height), Image.Resampling.NEAREST))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return Clip(title, buffer.getvalue(), "video/mp4")


def clip_files(run: Path) -> list[Path]:
    """Return the video files in a run's folder `samples`, by name; links are not followed."""
    folder = run / "samples"
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and _own(path, folder))


def read_clip(title: str, path: Path, run: Path) -> Clip | None:
    """Read a file in a run's folder `samples`; None if it is outside, no video, or too large."""
    if path.suffix not in SUFFIXES or not _own(path, run / "samples") or path.stat().st_size > MOST_CLIP_BYTES:
        return None
    return Clip(title, path.read_bytes(), SUFFIXES[path.suffix])


def clips_html(clips: Sequence[Clip]) -> str:
    """Return the clips in a row, with one control for all videos; `demo.js` handles its buttons."""
    players = "".join(_player(clip) for clip in clips)
    control = (
        '<div class="mm-control"><button type="button" data-do="play">Play</button>'
        '<button type="button" data-do="back">− frame</button><button type="button" data-do="on">+ frame</button>'
        f'<input type="range" min="0" max="1000" value="0" aria-label="position" data-fps="{FRAMES_PER_SECOND}">'
        "<output>0.00 s</output></div>"
    )
    return f'<div class="mm-clips">{players}</div>{control}' if clips else ""


def _player(clip: Clip) -> str:
    data = f"data:{clip.kind};base64,{base64.b64encode(clip.content).decode()}"
    title = escape(clip.title)
    if clip.kind.startswith("image/"):
        return f'<figure><figcaption>{title}</figcaption><img src="{data}" alt="{title}"></figure>'
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<video src="{data}" muted loop playsinline preload="auto" aria-label="{title}"></video></figure>'
    )


def _own(path: Path, folder: Path) -> bool:
    """Return True if the file is inside the folder and no link."""
    return path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(folder.resolve())
