"""DrawBench (arXiv:2205.11487), PartiPrompts (arXiv:2206.10789), and other lists of prompts."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from mmrl.benchmarks.records import files_in, read_text, text_lines
from mmrl.data.sample import Sample
from mmrl.errors import DataError


def read(folder: Path) -> list[Sample]:
    """Read a table of prompts, `*.csv` or `*.tsv`, or `*.txt` with one prompt per line.

    The columns of DrawBench are `Prompts` and `Category`, those of PartiPrompts `Prompt`, `Category`, `Challenge` and
    `Note`; the category becomes the tag.
    """
    samples = []
    for path in files_in(folder, "*.csv", "*.tsv", "*.txt"):
        rows = [(line, "") for _, line in text_lines(path)] if path.suffix == ".txt" else _table(path)
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


def _table(path: Path) -> list[tuple[str, str]]:
    table = csv.DictReader(io.StringIO(read_text(path)), delimiter="\t" if path.suffix == ".tsv" else ",")
    columns = list(table.fieldnames or [])
    column = next((name for name in ("Prompts", "Prompt", "prompt") if name in columns), None)
    if column is None:
        raise DataError(f"{path}:1: its columns are {', '.join(columns) or 'none'}; expected Prompts or Prompt")
    rows = []
    for row in table:
        prompt = (row[column] or "").strip()
        if not prompt:
            raise DataError(f"{path}:{table.line_num}: there is no prompt in the column {column}")
        rows.append((prompt, (row.get("Category") or "").strip()))
    return rows
