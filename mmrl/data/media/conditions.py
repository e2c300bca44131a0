"""Conditions of a generator besides its prompt: images and videos by path, and other values such as numbers.

The name of a condition is the name of the pipeline argument that takes it. The five most common are keys of a line of
data; all others are listed under `conditions`:

    {"prompt": "make the circle blue", "image": "pictures/7.png"}
    {"prompt": "a red circle", "image": "pictures/7.png", "conditions": {"strength": 0.6}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from mmrl.data.media.uris import is_data_uri, uri_kind

KEYS = ("image", "mask_image", "control_image", "video", "num_frames")
"""Conditions that are keys of a line of data."""

_VIDEO_SUFFIXES = (".avi", ".gif", ".mkv", ".mov", ".mp4", ".webm")

MediaKind = Literal["image", "mask", "video"]
T = TypeVar("T")


def media_kind(name: str) -> MediaKind | None:
    """Return the kind of file that a pipeline argument of this name takes, or None if it takes no file.

    >>> [media_kind(name) for name in ("control_image", "mask_image", "pose_video", "num_frames")]
    ['image', 'mask', 'video', None]
    """
    words = name.split("_")
    if {"num", "embeds", "embeddings", "latents"} & set(words):
        return None
    if {"video", "videos", "frames", "controls"} & set(words):
        return "video"
    if "mask" in words:
        return "mask"
    return "image" if {"image", "images"} & set(words) else None


def is_video(kind: MediaKind, path: str) -> bool:
    """Return True if a file is decoded as a video; masks and images can be videos too, with one per frame."""
    if is_data_uri(path):
        return kind == "video" or uri_kind(path).startswith("video/") or uri_kind(path) == "image/gif"
    return kind == "video" or path.lower().endswith(_VIDEO_SUFFIXES)


def map_media(conditions: Mapping[str, Any], change: Callable[[MediaKind, str], T]) -> dict[str, Any]:
    """Return the conditions with `change` applied to every path of an image or video, also in lists of paths."""
    changed: dict[str, Any] = {}
    for name, value in conditions.items():
        kind = media_kind(name)
        if kind and isinstance(value, str):
            changed[name] = change(kind, value)
        elif kind and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            changed[name] = [change(kind, each) for each in value]
        else:
            changed[name] = value
    return changed
