"""Answers that are pictures: what a generator is shown to imitate, to prefer and to avoid.

    {"prompt": "a red circle", "demonstration": {"image": "pictures/7.png"}}
    {"prompt": "a red circle", "chosen": {"image": "pictures/7.png"}, "rejected": {"image": "pictures/8.png"}}

Where a text would stand, a map with the one key `image` stands, so that no text is taken for a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmrl.data.sample import Sample

KEYS = ("demonstration", "chosen", "rejected")
"""The keys of a sample that hold answers."""


def picture_of(answer: Any) -> str | None:
    """The path (or data URI) of an answer that is a picture; None: it is something else.

    >>> picture_of({"image": "pictures/7.png"}), picture_of("pictures/7.png")
    ('pictures/7.png', None)
    """
    if isinstance(answer, dict) and list(answer) == ["image"] and isinstance(answer["image"], str) and answer["image"]:
        return answer["image"]
    return None


def pictures_of(answers: Any) -> tuple[str, ...]:
    """The pictures of one answer or a list of answers; empty if any of them is something else."""
    found = [picture_of(each) for each in (answers if isinstance(answers, list | tuple) else [answers])]
    return tuple(path for path in found if path is not None) if None not in found else ()


def with_pictures(sample: Sample, change: Callable[[str], str]) -> dict[str, Any]:
    """The answers of a sample, by key, with the path of every picture changed."""

    def changed(answer: Any) -> Any:
        path = picture_of(answer)
        return answer if path is None else {"image": change(path)}

    answers = {key: getattr(sample, key) for key in KEYS}
    return {
        key: [changed(each) for each in value] if isinstance(value, list) else changed(value)
        for key, value in answers.items()
    }


def answer_pictures(sample: Sample) -> Iterator[str]:
    """The paths of all pictures among the answers of a sample."""
    for key in KEYS:
        value = getattr(sample, key)
        for each in value if isinstance(value, list | tuple) else [value]:
            if (path := picture_of(each)) is not None:
                yield path
