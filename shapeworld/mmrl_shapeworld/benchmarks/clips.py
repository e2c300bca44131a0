"""Moments of clips in the files of Charades-STA."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mmrl.data.media.uris import uri_bytes
from mmrl_shapeworld.vqa.canvas import gif_uri
from mmrl_shapeworld.vqa.heldout_tasks import temporal_grounding


def write_charades_sta(folder: Path, count: int, rng: np.random.Generator) -> None:
    """From when to when a thing is there. Clips are GIFs, where Charades has MP4."""
    (folder / "videos").mkdir(exist_ok=True)
    lines = []
    for number in range(count):
        question = temporal_grounding(rng)
        (folder / "videos" / f"S{number:04d}.gif").write_bytes(uri_bytes(gif_uri(question.frames)))
        thing = question.prompt.removeprefix("When is the ").removesuffix(" there?")
        start, end = question.answer
        lines.append(f"S{number:04d} {start:.1f} {end:.1f}##{thing}\n")
    (folder / "charades_sta_test.txt").write_text("".join(lines), encoding="utf-8")
