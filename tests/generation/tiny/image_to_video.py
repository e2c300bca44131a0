"""Tiny pipelines that make videos from images or videos, as data."""

from __future__ import annotations

from dataclasses import replace

from tiny import videos
from tiny.factory import Tiny

PIPELINES: dict[str, Tiny] = {
    "ltx_image": replace(videos.PIPELINES["ltx"], pipeline="LTXImageToVideoPipeline", conditions={"image": (32, 32)}),
}
