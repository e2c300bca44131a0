"""CountBench with questions (arXiv:2302.12066; questions: CountBenchQA of vikhyatk)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mmrl.benchmarks.records import JsonRecord, files_in, inside, json_lines, json_value, records_of
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source
from mmrl.errors import DataError

_COLUMNS = {"question": "prompt", "image": "images", "number": "answer"}


def read(folder: Path) -> list[Sample]:
    """Read the Parquet files of CountBenchQA (needs `pip install mmrl-suite[data]`), or `*.jsonl`, or `*.json`.

        {"image": "images/7.png", "question": "How many dogs are there in the image?", "number": 3}

    Other columns, such as the caption `text`, are ignored. Paths of images are relative to the folder.
    """
    samples: list[Sample] = []
    for path in files_in(folder, "*.parquet", "data/*.parquet", "*.jsonl", "*.json"):
        if path.suffix == ".parquet":
            samples += _of_table(path)
        else:
            entries = json_lines(path) if path.suffix == ".jsonl" else records_of(json_value(path), str(path))
            samples += [_of_entry(folder, path, number, entry) for number, entry in enumerate(entries)]
    return samples


def _of_table(path: Path) -> list[Sample]:
    rows = load_source(str(path), _COLUMNS)
    for number, row in enumerate(rows):
        if not isinstance(row.answer, int) or not row.images:
            raise DataError(f"{path}, row {number}: expected columns image, question and number (an integer)")
    return [replace(row, source="countbench", metadata={"tags": [str(row.answer)]}) for row in rows]


def _of_entry(folder: Path, path: Path, number: int, entry: JsonRecord) -> Sample:
    count = entry.count("number")
    return Sample(
        id=f"{path.stem}-{number:05d}",
        prompt=entry.text("question"),
        images=(inside(folder, entry.text("image"), entry.place),),
        answer=count,
        source="countbench",
        metadata={"tags": [str(count)]},
    )
