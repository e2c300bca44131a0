"""Answers that are images: demonstrations, and the chosen and rejected images of preference pairs.

    {"prompt": "a red circle", "demonstration": {"image": "pictures/7.png"}}
    {"prompt": "a red circle", "chosen": {"image": "pictures/7.png"}, "rejected": {"image": "pictures/8.png"}}

An image is a map with the single key `image`, so that a text is never taken for a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmrl.data.sample import Sample

KEYS = ("demonstration", "chosen", "rejected")
"""The keys of a sample that contain answers."""


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


def map_answer_images(sample: Sample, change: Callable[[str], str]) -> dict[str, Any]:
    """Return the answers of a sample by key, with `change` applied to the path of every image."""

    def changed(answer: Any) -> Any:
        path = answer_image(answer)
        return answer if path is None else {"image": change(path)}

    answers = {key: getattr(sample, key) for key in KEYS}
    return {
        key: [changed(each) for each in value] if isinstance(value, list) else changed(value)
        for key, value in answers.items()
    }


def images_of_answers(sample: Sample) -> Iterator[str]:
    """Yield the paths of all images among the answers of a sample."""
    for key in KEYS:
        value = getattr(sample, key)
        for each in value if isinstance(value, list | tuple) else [value]:
            if (path := answer_image(each)) is not None:
                yield path
