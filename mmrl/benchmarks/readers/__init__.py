"""Readers of benchmarks, in the files as they are published.

    read(format, folder) -> list[Sample]     one reader a format, all in `FORMATS`

    DataError                                the folder lacks a file, or a line of one is not what is due; the message
                                             names the file and the line or entry

A sample of a benchmark has the words of its file as `prompt` (a protocol's `ask` makes a question of them), the right
answer as `answer`, and under `metadata["tags"]` a list of what its benchmark counts it under: GenEval's tag, VBench's
dimensions, MathVista's skills. Paths in files stay inside the folder.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from mmrl.benchmarks.readers.charades_sta import read_charades_sta
from mmrl.benchmarks.readers.chartqa import read_chartqa
from mmrl.benchmarks.readers.coco import read_coco
from mmrl.benchmarks.readers.countbench import read_countbench
from mmrl.benchmarks.readers.geneval import read_geneval
from mmrl.benchmarks.readers.mathvista import read_mathvista
from mmrl.benchmarks.readers.ocr_lines import read_ocr_lines
from mmrl.benchmarks.readers.prompts import read_drawbench, read_ocr_prompts
from mmrl.benchmarks.readers.refcoco import read_refcoco
from mmrl.benchmarks.readers.vbench import read_vbench
from mmrl.data.sample import Sample
from mmrl.errors import DataError

__all__ = ["FORMATS", "read"]


# Readers by the name of their format.


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
