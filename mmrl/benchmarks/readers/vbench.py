"""VBench's prompts for the dimensions that are measured from the video alone (arXiv:2311.17982)."""

from __future__ import annotations

import logging
from pathlib import Path

from mmrl.benchmarks.records import files_in, json_value, records_of
from mmrl.data.sample import Sample

log = logging.getLogger(__name__)

DIMENSIONS = ("subject_consistency", "background_consistency", "temporal_flickering")
"""The dimensions that are measured here."""


def read(folder: Path) -> list[Sample]:
    """Read `VBench_full_info.json` of Vchitect/VBench, a list of prompts with the dimensions that are measured on them.

        {"prompt_en": "a person swimming in ocean", "dimension": ["subject_consistency", "dynamic_degree"]}

    Prompts of none of `DIMENSIONS` are left out, and their number is logged.
    """
    samples, others = [], 0
    for path in files_in(folder, "VBench_full_info.json", "vbench/VBench_full_info.json"):
        for number, entry in enumerate(records_of(json_value(path), str(path))):
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
