"""Tiny pipelines with random weights: real classes of diffusers and transformers, described as data.

A pipeline is a class name, the classes and configurations of its components, and the sampling that exercises it.
`build("sd3")` makes one in a fraction of a second; equal names give equal weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers

from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample
from tests.generation.tiny_pipelines import (
    cogvideox,
    edits,
    flow_images,
    flux_images,
    hunyuan_video,
    kandinsky,
    ltx,
    noise_transformers,
    sdxl,
    single_stream,
    unet_videos,
    unets,
    videos,
    wan,
)
from tests.generation.tiny_pipelines.factory import Tiny, make
from tests.generation.tiny_pipelines.files import picture, video

_TABLES = (
    flow_images,
    flux_images,
    single_stream,
    edits,
    unets,
    sdxl,
    kandinsky,
    noise_transformers,
    wan,
    ltx,
    hunyuan_video,
    cogvideox,
    videos,
    unet_videos,
)
PIPELINES: dict[str, Tiny] = {name: tiny for table in _TABLES for name, tiny in table.PIPELINES.items()}
assert len(PIPELINES) == sum(len(table.PIPELINES) for table in _TABLES), "two tiny pipelines share a name"


def build(name: str, seed: int = 0) -> diffusers.DiffusionPipeline:
    """A tiny pipeline; the global random state is left as it was."""
    return make(PIPELINES[name], seed)


def sampling(name: str, **changes: Any) -> SamplingConfig:
    """Six flow-SDE steps of a tiny pipeline."""
    defaults = {"steps": 6, "transition": {"name": "flow_sde", "noise_level": 0.7}}
    return SamplingConfig(**{**defaults, **PIPELINES[name].sampling, **changes})


def samples(name: str, folder: Path) -> list[Sample]:
    """Two samples as a data set would give them, with the pictures and videos that the pipeline asks for."""
    return [
        Sample(str(number), prompt=prompt, conditions=_conditions(PIPELINES[name], folder, number))
        for number, prompt in enumerate(PIPELINES[name].prompts)
    ]


def _conditions(tiny: Tiny, folder: Path, number: int) -> dict[str, Any]:
    """Sizes `(width, height)` become files: pictures, or videos where `(width, height, frames)`."""
    made: dict[str, Any] = {}
    for place, (name, value) in enumerate(tiny.conditions.items()):
        seed = 10 * number + place
        if isinstance(value, tuple):
            write = picture if len(value) == 2 else video
            made[name] = str(write(folder / f"{name}-{number}", value, seed))
        else:
            made[name] = value
    return made
