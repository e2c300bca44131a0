"""Prompts of generators: DrawBench, GenEval, prompts for texts in images, and VBench."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import entries_in, files_in, read_text, text_lines
from mmrl.data.sample import Sample
from mmrl.errors import DataError

log = logging.getLogger(__name__)

DIMENSIONS = ("subject_consistency", "background_consistency", "temporal_flickering")
"""The dimensions of VBench that are measured here."""
_QUOTED = re.compile('"([^"]+)"|\u201c([^\u201d]+)\u201d')


def read_drawbench(folder: Path) -> list[Sample]:
    """Read a table of prompts, `*.csv` or `*.tsv`, or `*.txt` with one prompt per line.

    The columns of DrawBench (arXiv:2205.11487) are `Prompts` and `Category`, those of PartiPrompts (arXiv:2206.10789)
    `Prompt`, `Category`, `Challenge` and `Note`; the category becomes the tag.
    """
    samples = []
    for path in files_in(folder, "*.csv", "*.tsv", "*.txt"):
        rows = [(line, "") for _, line in text_lines(path)] if path.suffix == ".txt" else _prompts_of_table(path)
        samples += [
            _sample(f"{path.stem}-{number:05d}", prompt, path.stem, {"tags": [category] if category else []})
            for number, (prompt, category) in enumerate(rows)
        ]
    return samples


def read_geneval(folder: Path) -> list[Sample]:
    """Read `evaluation_metadata.jsonl` of djghosh13/geneval (arXiv:2310.11513), with one prompt per line.

        {"tag": "position", "prompt": "a photo of a dog right of a bench", "include": [{"class": "bench", "count": 1},
         {"class": "dog", "count": 1, "position": ["right of", 0]}], "exclude": [{"class": "dog", "count": 2}]}

    `include`, `exclude` and `tag` are the references of the reward `geneval`; a clause may have a `color`.
    """
    samples = []
    for _, number, entry in entries_in(folder, "evaluation_metadata.jsonl", "prompts/evaluation_metadata.jsonl"):
        clauses = {key: entry.records(key) for key in ("include", "exclude") if key in entry.fields}
        if not clauses.get("include"):
            raise entry.wrong("include", "a list of {class, count}")
        for clause in (clause for lists in clauses.values() for clause in lists):
            clause.text("class")
            clause.count("count")
        tag = entry.text("tag")
        metadata: dict[str, Any] = {"tags": [tag], "tag": tag}
        metadata |= {key: [dict(clause.fields) for clause in clauses[key]] for key in clauses}
        samples.append(_sample(f"geneval-{number:05d}", entry.text("prompt"), "geneval", metadata))
    return samples


def read_ocr_prompts(folder: Path) -> list[Sample]:
    """Read `test.txt` of yifan123/flow_grpo dataset/ocr (arXiv:2505.05470): one prompt per line, with a text in quotes.

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
                _sample(f"{path.stem}-{number:05d}", line, "ocr", {"tags": [], "text": quoted[1] or quoted[2]})
            )
    return samples


def read_vbench(folder: Path) -> list[Sample]:
    """Read `VBench_full_info.json` of Vchitect/VBench (arXiv:2311.17982): prompts with the dimensions measured on them.

        {"prompt_en": "a person swimming in ocean", "dimension": ["subject_consistency", "dynamic_degree"]}

    Prompts of none of `DIMENSIONS`, which are measured from the video alone, are left out, and their number is logged.
    """
    samples, others = [], 0
    for _, number, entry in entries_in(folder, "VBench_full_info.json", "vbench/VBench_full_info.json"):
        prompt, dimensions = entry.text("prompt_en"), entry.texts("dimension")
        if set(dimensions) & set(DIMENSIONS):
            samples.append(_sample(f"vbench-{number:05d}", prompt, "vbench", {"tags": dimensions}, "text-to-video"))
        else:
            others += 1
    if others:
        log.warning("%s: %d prompts are for dimensions other than %s and left out", folder, others, DIMENSIONS)
    return samples


def _sample(id: str, prompt: str, source: str, metadata: Mapping[str, Any], task: str = "text-to-image") -> Sample:
    return Sample(id=id, prompt=prompt, task=task, source=source, metadata=metadata)


def _prompts_of_table(path: Path) -> list[tuple[str, str]]:
    """Return (prompt, category) of each row."""
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
