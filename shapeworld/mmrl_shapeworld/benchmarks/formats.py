"""The writers of ShapeWorld's benchmark files, by the name of their format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mmrl_shapeworld.benchmarks.clips import write_charades_sta
from mmrl_shapeworld.benchmarks.detection import write_coco, write_refcoco
from mmrl_shapeworld.benchmarks.image_questions import write_chartqa, write_countbench, write_mathvista, write_ocr_lines
from mmrl_shapeworld.benchmarks.prompts import write_drawbench, write_geneval, write_ocr_prompts, write_vbench

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
"""A writer for each format of `mmrl.benchmarks.readers`."""


class ShapeWorldBenchmarks:
    """The data behind `mmrl evaluate --data shapeworld`: see `mmrl.build.schemes.BenchmarkData`."""

    validation: Mapping[str, str] = {
        "pipeline": "shapeworld:validation",
        "vlm": "shapeworld:vlm-validation",
        "image_tokens": "shapeworld:validation",
    }

    def write(self, format: str, folder: Path, count: int, seed: int) -> None:
        """Write `count` samples in a benchmark's format. The same arguments write the same bytes.

        Raises:
            KeyError: ShapeWorld has no writer of this format.
        """
        if format not in FORMATS:
            raise KeyError(f"ShapeWorld is not written in the format {format!r}, only in {', '.join(FORMATS)}")
        folder.mkdir(parents=True, exist_ok=True)
        FORMATS[format](folder, count, np.random.default_rng((seed, list(FORMATS).index(format))))

    def overrides(self, protocol: str) -> Mapping[str, Any]:
        """Return the keys of the protocol with this name that have other values on ShapeWorld's data."""
        changes: Mapping[str, Any] = _all_overrides().get(protocol, {})
        return changes


BENCHMARK_DATA = ShapeWorldBenchmarks()


@cache
def _all_overrides() -> dict[str, Any]:
    text = Path(__file__).with_name("overrides.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
