"""Charades-STA: temporal grounding in videos (arXiv:1705.02101)."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mmrl.benchmarks.records import files_in, inside, text_lines
from mmrl.data.sample import Sample
from mmrl.errors import DataError

log = logging.getLogger(__name__)

_LINE = re.compile(r"(?P<video>[\w-]+) (?P<start>[0-9.]+) (?P<end>[0-9.]+) ?## ?(?P<sentence>.+)")
_FOLDERS = ("videos", "Charades_v1_480", "Charades_v1")
_SUFFIXES = (".mp4", ".gif", ".mkv", ".webm", ".avi")


def read(folder: Path) -> list[Sample]:
    """Read `charades_sta_test.txt` beside `videos/`, `Charades_v1_480/` or `Charades_v1/`.

        3MSZA 24.3 30.4##person turn a light on.

    A line is the name of a video, start and end in seconds, and the sentence. Lines whose end is not after their start
    are left out, and their number is logged.
    """
    path = files_in(folder, "charades_sta_test.txt", "*sta*test*.txt")[0]
    videos = next((folder / name for name in _FOLDERS if (folder / name).is_dir()), None)
    if videos is None:
        raise DataError(f"{folder}: there is no folder {' or '.join(_FOLDERS)} with the videos in it")
    samples, empty = [], 0
    for number, line in text_lines(path):
        found = _LINE.fullmatch(line)
        if found is None:
            raise DataError(f"{path}:{number}: is {line!r:.60}; expected VIDEO START END##SENTENCE")
        try:
            start, end = float(found["start"]), float(found["end"])
        except ValueError:
            raise DataError(f"{path}:{number}: expected seconds, got {found['start']} and {found['end']}") from None
        if start >= end:
            empty += 1
            continue
        samples.append(
            Sample(
                id=f"charades-{number:05d}",
                prompt=found["sentence"].strip(),
                videos=(_video(videos, found["video"], f"{path}:{number}"),),
                answer=[start, end],
                source="charades_sta",
                metadata={"tags": []},
            )
        )
    if empty:
        log.warning("%s: %d lines whose end is not after their start are left out", path, empty)
    return samples


def _video(folder: Path, name: str, place: str) -> str:
    for suffix in _SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return inside(folder, f"{name}{suffix}", place)
    raise DataError(f"{place}: there is no video {folder / name} with an ending of {', '.join(_SUFFIXES)}")
