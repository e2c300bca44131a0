"""Lists of prompts: DrawBench, PartiPrompts, and those that ask for a text in the picture."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from mmrl.benchmarks.readers.files import files_in, read_text, text_lines
from mmrl.data.sample import Sample
from mmrl.errors import DataError

_QUOTED = re.compile('"([^"]+)"|\u201c([^\u201d]+)\u201d')


def read_drawbench(folder: Path) -> list[Sample]:
    """A table of prompts, `*.csv` or `*.tsv`, or `*.txt` with a prompt a line.

    DrawBench's columns are `Prompts` and `Category`, PartiPrompts' `Prompt`, `Category`, `Challenge` and `Note`; the
    category becomes the tag.
    """
    samples = []
    for path in files_in(folder, "*.csv", "*.tsv", "*.txt"):
        rows = _lines(path) if path.suffix == ".txt" else _table(path)
        for number, (prompt, category) in enumerate(rows):
            samples.append(
                Sample(
                    id=f"{path.stem}-{number:05d}",
                    prompt=prompt,
                    task="text-to-image",
                    source=path.stem,
                    metadata={"tags": [category] if category else []},
                )
            )
    return samples


def read_ocr_prompts(folder: Path) -> list[Sample]:
    """`test.txt` as Flow-GRPO has it (yifan123/flow_grpo dataset/ocr): a prompt a line, the text to be drawn in quotes.

        New York Skyline with "Hello World" written with fireworks on the sky

    What stands in the first pair of quotes is what the reward `rendered_text` looks for.
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


def _lines(path: Path) -> list[tuple[str, str]]:
    return [(line, "") for _, line in text_lines(path)]


def _table(path: Path) -> list[tuple[str, str]]:
    table = csv.DictReader(io.StringIO(read_text(path)), delimiter="\t" if path.suffix == ".tsv" else ",")
    columns = list(table.fieldnames or [])
    column = next((name for name in ("Prompts", "Prompt", "prompt") if name in columns), None)
    if column is None:
        raise DataError(f"{path}:1: its columns are {', '.join(columns) or 'none'}; Prompts or Prompt is due")
    rows = []
    for row in table:
        prompt = (row[column] or "").strip()
        if not prompt:
            raise DataError(f"{path}:{table.line_num}: there is no prompt in the column {column}")
        rows.append((prompt, (row.get("Category") or "").strip()))
    return rows
