"""Choose tiny pipelines that cover every pair of feature values, for the everyday tests.

The features are read off the table of `tiny_pipelines.PIPELINES`, so a new pipeline with a new pair of values becomes
a representative by itself. Its siblings run under the marker `breadth`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import diffusers

from mmrl.data.media.sample_media import media_kind
from mmrl.generation.diffusion.scheduler_families import family_of
from tests.generation import tiny_pipelines as tiny
from tests.generation.tiny_pipelines import cogvideox, hunyuan_video, ltx, unet_videos, videos, wan
from tests.generation.tiny_pipelines.factory import Tiny, component
from tests.pair_cover import pair_cover


@dataclass(frozen=True)
class Features:
    """The properties of a pipeline that select code paths of a policy."""

    family: str
    """The class of its scheduler's family."""
    packed: bool
    """True if its latents are packed into tokens."""
    guidance: Literal["none", "scale", "perturbed attention", "guider"]
    video: bool
    conditions: Literal["prompt", "media", "mask"]


def features(name: str) -> Features:
    """Return the features of a tiny pipeline."""
    pipeline = tiny.PIPELINES[name]
    kind = getattr(diffusers, pipeline.pipeline)
    media = {media_kind(each) for each in pipeline.conditions} - {None}
    return Features(
        family=type(family_of(component(pipeline.components["scheduler"]))).__name__,
        packed=hasattr(kind, "_pack_latents"),
        guidance=_guidance(pipeline),
        video=any(name in table.PIPELINES for table in _VIDEOS),
        conditions="mask" if "mask" in media else "media" if media else "prompt",
    )


_VIDEOS = (cogvideox, hunyuan_video, ltx, unet_videos, videos, wan)


def _guidance(pipeline: Tiny) -> Literal["none", "scale", "perturbed attention", "guider"]:
    if pipeline.unguided is None:
        return "none"
    if "guider" in pipeline.components:
        return "guider"
    return "perturbed attention" if "PAG" in pipeline.pipeline else "scale"


@cache
def representatives() -> frozenset[str]:
    """Return pipelines, neither slow nor heavy, that have every pair of feature values of all of these."""
    quick = [name for name, pipeline in tiny.PIPELINES.items() if not (pipeline.slow or pipeline.heavy)]
    return frozenset(pair_cover({name: features(name) for name in quick}))
