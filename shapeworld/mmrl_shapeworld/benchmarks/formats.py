"""Writers by the name of their format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mmrl_shapeworld.benchmarks.clips import write_charades_sta
from mmrl_shapeworld.benchmarks.detection import write_coco, write_refcoco
from mmrl_shapeworld.benchmarks.prompts import write_drawbench, write_geneval, write_ocr_prompts, write_vbench
from mmrl_shapeworld.benchmarks.questions import write_chartqa, write_countbench, write_mathvista, write_ocr_lines

FORMATS: Mapping[str, Callable[[Path, int, np.random.Generator], None]] = {
    "geneval": write_geneval,
    "ocr_prompts": write_ocr_prompts,
    "drawbench": write_drawbench,
    "vbench": write_vbench,
    "refcoco": write_refcoco,
    "coco": write_coco,
    "countbench": write_countbench,
    "ocr_lines": write_ocr_lines,
    "chartqa": write_chartqa,
    "mathvista": write_mathvista,
    "charades_sta": write_charades_sta,
}
"""What `write` takes; `mmrl.benchmarks.readers` has a reader of each."""


def write(format: str, folder: Path | str, count: int, seed: int = 0) -> None:
    """Write `count` samples of ShapeWorld in a benchmark's format; the folder may be there already.

    Raises:
        KeyError: there is no such format.
    """
    if format not in FORMATS:
        raise KeyError(f"ShapeWorld is not written in the format {format!r}, only in {', '.join(FORMATS)}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    FORMATS[format](Path(folder), count, np.random.default_rng((seed, list(FORMATS).index(format))))
