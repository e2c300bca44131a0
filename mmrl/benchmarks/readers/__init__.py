"""Readers of benchmarks in the files in which they are published.

    read_benchmark(format, folder)   the samples of a benchmark's public files
    READERS                          the registry of readers by format

A reader is a function `read(folder: Path) -> list[Sample]`: one of this package, an entry point of the group
`mmrl.benchmarks`, or `path/to/file.py:read` as the `format` of a protocol. It raises `DataError`, with the file and the
line or entry, if a file is missing or an entry has other fields than expected; `mmrl.benchmarks.records` helps.

The samples of a benchmark have the words of its file as `prompt` (the protocol's `ask` makes a question of them), the
reference as `answer`, and in `metadata["tags"]` the categories that the benchmark reports: GenEval's tag, VBench's
dimensions, MathVista's skills. Paths in files must stay inside the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmrl.components import Registry
from mmrl.data.sample import Sample
from mmrl.errors import DataError

__all__ = ["READERS", "Reader", "read_benchmark"]

Reader = Callable[[Path], list[Sample]]

READERS: Registry[Reader] = Registry(
    "mmrl.benchmarks",
    "benchmark format",
    {
        format: f"{__name__}.{module}:read_{format}"
        for module, formats in {
            "grounding": ("charades_sta", "coco", "refcoco"),
            "image_prompts": ("drawbench", "geneval", "ocr_prompts", "vbench"),
            "image_questions": ("chartqa", "countbench", "mathvista", "ocr_lines"),
        }.items()
        for format in formats
    },
    error=DataError,
)


def read_benchmark(format: str, folder: Path | str) -> list[Sample]:
    """Return the samples of a benchmark's public files; `format` is a name in `READERS`, or `path/to/file.py:read`.

    Raises:
        DataError: there is no such format, a file is missing, or an entry has other fields than expected.
    """
    reader = READERS.load(format)
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; expected the folder of a benchmark's files")
    samples = reader(folder)
    if not samples:
        raise DataError(f"{folder}: its {format} files hold no samples")
    return samples
