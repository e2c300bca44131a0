"""Readers by the name of their format."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from mmrl.data.benchmarks.charades_sta import read_charades_sta
from mmrl.data.benchmarks.chartqa import read_chartqa
from mmrl.data.benchmarks.coco import read_coco
from mmrl.data.benchmarks.countbench import read_countbench
from mmrl.data.benchmarks.geneval import read_geneval
from mmrl.data.benchmarks.mathvista import read_mathvista
from mmrl.data.benchmarks.ocr_lines import read_ocr_lines
from mmrl.data.benchmarks.prompts import read_drawbench, read_ocr_prompts
from mmrl.data.benchmarks.refcoco import read_refcoco
from mmrl.data.benchmarks.vbench import read_vbench
from mmrl.data.jsonl import DataError
from mmrl.data.sample import Sample

FORMATS: Mapping[str, Callable[[Path], list[Sample]]] = {
    "geneval": read_geneval,
    "ocr_prompts": read_ocr_prompts,
    "drawbench": read_drawbench,
    "vbench": read_vbench,
    "refcoco": read_refcoco,
    "coco": read_coco,
    "countbench": read_countbench,
    "ocr_lines": read_ocr_lines,
    "chartqa": read_chartqa,
    "mathvista": read_mathvista,
    "charades_sta": read_charades_sta,
}
"""What `read` takes; each reader's docstring says which files and fields are due."""


def read(format: str, folder: Path | str) -> list[Sample]:
    """The samples of a benchmark's public files, which lie in `folder`.

    Raises:
        DataError: there is no such format, a file is not there, or an entry of one is not what is due.
    """
    reader = FORMATS.get(format)
    if reader is None:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FORMATS)}"
        raise DataError(f"no benchmark's format is called {format!r}: {hint}")
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; the files of a benchmark lie in one")
    samples = reader(folder)
    if not samples:
        raise DataError(f"{folder}: its {format} files hold no samples")
    return samples
