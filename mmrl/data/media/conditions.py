"""What a generator is given beside its prompt: pictures and videos by path, numbers as they are.

Each condition is called after the argument of the pipeline that takes it. The five most common have keys of their own
in a line of a data set, all others stand under `conditions`:

    {"prompt": "make the circle blue", "image": "pictures/7.png"}
    {"prompt": "a red circle", "image": "pictures/7.png", "conditions": {"strength": 0.6}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from mmrl.data.media.uris import is_data_uri, uri_kind

KEYS = ("image", "mask_image", "control_image", "video", "num_frames")
"""Conditions that are keys of a line themselves."""

_VIDEO_SUFFIXES = (".avi", ".gif", ".mkv", ".mov", ".mp4", ".webm")

Kind = Literal["image", "mask", "video"]
T = TypeVar("T")


def media_kind(name: str) -> Kind | None:
    """What kind of file an argument of this name takes, or None: its value is no file.

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


def holds_video(kind: Kind, path: str) -> bool:
    """Whether a file is read as a video: by its suffix too, for some masks and pictures are one for each frame."""
    if is_data_uri(path):
        return kind == "video" or uri_kind(path).startswith("video/") or uri_kind(path) == "image/gif"
    return kind == "video" or path.lower().endswith(_VIDEO_SUFFIXES)


def map_media(conditions: Mapping[str, Any], change: Callable[[Kind, str], T]) -> dict[str, Any]:
    """The conditions with every path of a picture or video changed; lists are lists of paths."""
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
