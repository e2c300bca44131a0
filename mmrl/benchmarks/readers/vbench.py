"""VBench's prompts for what can be seen in a video alone (arXiv:2311.17982)."""

from __future__ import annotations

import logging
from pathlib import Path

from mmrl.benchmarks.readers.files import entries_of, files_in, json_value
from mmrl.data.sample import Sample

log = logging.getLogger(__name__)

DIMENSIONS = ("subject_consistency", "background_consistency", "temporal_flickering")
"""Those that are measured here."""


def read_vbench(folder: Path) -> list[Sample]:
    """`VBench_full_info.json` of Vchitect/VBench, a list of prompts with the dimensions that are measured on them.

        {"prompt_en": "a person swimming in ocean", "dimension": ["subject_consistency", "dynamic_degree"]}

    Prompts of none of `DIMENSIONS` are left out, and how many is logged.
    """
    samples, others = [], 0
    for path in files_in(folder, "VBench_full_info.json", "vbench/VBench_full_info.json"):
        for number, entry in enumerate(entries_of(json_value(path), str(path))):
            prompt, dimensions = entry.text("prompt_en"), entry.texts("dimension")
            if not set(dimensions) & set(DIMENSIONS):
                others += 1
                continue
            samples.append(
                Sample(
                    id=f"vbench-{number:05d}",
                    prompt=prompt,
                    task="text-to-video",
                    source="vbench",
                    metadata={"tags": dimensions},
                )
            )
    if others:
        log.warning("%s: %d prompts are for dimensions other than %s and left out", folder, others, DIMENSIONS)
    return samples
