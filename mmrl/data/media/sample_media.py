"""The media that a sample names: conditions of a generator, and answers that are images.

The name of a condition is the name of the pipeline argument that takes it. The five most common are keys of a line of
data; all others are listed under `conditions`. A condition is a file, or another value such as a number:

    {"prompt": "make the circle blue", "image": "pictures/7.png"}
    {"prompt": "a red circle", "image": "pictures/7.png", "conditions": {"strength": 0.6}}

Answers are demonstrations, and the chosen and rejected ones of preference pairs. An image is a map with the single key
`image`, so that a text is never taken for a path:

    {"prompt": "a red circle", "demonstration": {"image": "pictures/7.png"}}
    {"prompt": "a red circle", "chosen": {"image": "pictures/7.png"}, "rejected": {"image": "pictures/8.png"}}

The screens of a recorded trace are the keys `screen` of its `metadata["steps"]` (`mmrl.environments.recorded_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

from mmrl.data.media.uris import is_data_uri, uri_kind
from mmrl.data.sample import Sample

CONDITION_KEYS = ("image", "mask_image", "control_image", "video", "num_frames")
"""Conditions that are keys of a line of data."""
STEPS, SCREEN = "steps", "screen"
"""The key in `Sample.metadata` of the steps of a recorded trace, and the key of a step's picture."""
ANSWER_KEYS = ("demonstration", "chosen", "rejected")
"""The keys of a sample that contain answers."""
_VIDEO_SUFFIXES = (".avi", ".gif", ".mkv", ".mov", ".mp4", ".webm")

MediaKind = Literal["image", "mask", "video"]
Medium: TypeAlias = Literal["image", "video"]
T = TypeVar("T")


def media_kind(name: str) -> MediaKind | None:
    """Return the kind of file that a pipeline argument of this name takes, or None if it takes no file.

    >>> [media_kind(name) for name in ("control_image", "mask_image", "pose_video", "num_frames", "image_scale")]
    ['image', 'mask', 'video', None, None]
    """
    words = name.split("_")
    if {"num", "scale", "embeds", "embeddings", "latents"} & set(words):
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


def answer_image(answer: Any) -> str | None:
    """Return the path or data URI of an answer that is an image; None for any other answer.

    >>> answer_image({"image": "pictures/7.png"}), answer_image("pictures/7.png")
    ('pictures/7.png', None)
    """
    if isinstance(answer, dict) and list(answer) == ["image"] and isinstance(answer["image"], str) and answer["image"]:
        return answer["image"]
    return None


def answer_images(answers: Any) -> tuple[str, ...]:
    """Return the images of one answer or a list of answers; empty if any answer is not an image."""
    found = [answer_image(each) for each in (answers if isinstance(answers, list | tuple) else [answers])]
    return tuple(path for path in found if path is not None) if None not in found else ()


def with_answer_paths(sample: Sample) -> Sample:
    """Return the sample with the path of each answer that is an image in the place of `{image: path}`."""

    def path(answer: Any) -> Any:
        return answer_image(answer) or answer

    answers = {key: getattr(sample, key) for key in ANSWER_KEYS}
    plain: dict[str, Any] = {
        key: list(map(path, value)) if isinstance(value, list) else path(value) for key, value in answers.items()
    }
    return replace(sample, **plain)


def map_answer_images(sample: Sample, change: Callable[[str], str]) -> dict[str, Any]:
    """Return the answers of a sample by key, with `change` applied to the path of every image."""

    def changed(answer: Any) -> Any:
        path = answer_image(answer)
        return answer if path is None else {"image": change(path)}

    answers = {key: getattr(sample, key) for key in ANSWER_KEYS}
    return {
        key: [changed(each) for each in value] if isinstance(value, list) else changed(value)
        for key, value in answers.items()
    }


def images_of_answers(sample: Sample) -> Iterator[str]:
    """Yield the paths of all images among the answers of a sample."""
    for key in ANSWER_KEYS:
        value = getattr(sample, key)
        for each in value if isinstance(value, list | tuple) else [value]:
            if (path := answer_image(each)) is not None:
                yield path


def map_screens(metadata: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the metadata with `change` applied to the path of every screen of a recorded trace."""
    steps = metadata.get(STEPS)
    if not isinstance(steps, list | tuple):
        return dict(metadata)

    def changed(step: Any) -> Any:
        if isinstance(step, Mapping) and isinstance(step.get(SCREEN), str):
            return {**step, SCREEN: change(step[SCREEN])}
        return step

    return {**metadata, STEPS: [changed(step) for step in steps]}


def screens_of(sample: Sample) -> Iterator[str]:
    """Yield the paths of all screens of a recorded trace after the first, which is an image of the sample."""
    steps = sample.metadata.get(STEPS)
    for step in steps if isinstance(steps, list | tuple) else ():
        if isinstance(step, Mapping) and isinstance(step.get(SCREEN), str):
            yield step[SCREEN]


def media_of(sample: Sample) -> Iterator[tuple[Medium, str]]:
    """Yield every image, mask and video of a sample, as (kind, path or data URI)."""
    yield from (("image", reference) for reference in (*sample.images, *images_of_answers(sample), *screens_of(sample)))
    yield from (("video", reference) for reference in sample.videos)
    found: list[tuple[Medium, str]] = []

    def add(kind: MediaKind, reference: str) -> None:
        found.append(("video" if is_video(kind, reference) else "image", reference))

    map_media({"mask": sample.mask} | dict(sample.conditions), add)
    yield from found
