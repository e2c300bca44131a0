"""Prompts that request a text in the image (Flow-GRPO, arXiv:2505.05470)."""

from __future__ import annotations

import re
from pathlib import Path

from mmrl.benchmarks.records import files_in, text_lines
from mmrl.data.sample import Sample
from mmrl.errors import DataError

_QUOTED = re.compile('"([^"]+)"|\u201c([^\u201d]+)\u201d')


def read(folder: Path) -> list[Sample]:
    """Read `test.txt` of yifan123/flow_grpo dataset/ocr: one prompt per line, with the text to render in quotes.

        New York Skyline with "Hello World" written with fireworks on the sky

    The first quoted text is the reference of the reward `rendered_text`.
    """
    samples = []
    for path in files_in(folder, "test.txt", "*.txt"):
        for number, line in text_lines(path):
            quoted = _QUOTED.search(line)
            if quoted is None:
                raise DataError(f"{path}:{number}: {line!r:.80} names no text in double quotes")
            samples.append(
                Sample(
                    id=f"{path.stem}-{number:05d}",
                    prompt=line,
                    task="text-to-image",
                    source="ocr",
                    metadata={"tags": [], "text": quoted[1] or quoted[2]},
                )
            )
    return samples
