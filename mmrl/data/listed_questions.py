"""The questions about a picture that a prompt answers, as a sample's metadata lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.errors import DataError


@dataclass(frozen=True)
class DrawnQuestion:
    """A question about a picture, and its answer where the picture is as its prompt wants it."""

    question: str
    answer: str
    kind: str = ""
    """The subject, such as the whole picture or one of its things; empty: not stated."""


def questions_of(listed: Any) -> list[DrawnQuestion]:
    """Return the questions of a sample's metadata.

    Raises:
        DataError: they are no list of mappings with `question`, `answer` and, if at all, `kind`.
    """
    keys = {"question", "answer", "kind"}
    fits = isinstance(listed, list | tuple) and all(
        isinstance(each, Mapping) and {"question", "answer"} <= set(each) <= keys for each in listed
    )
    if not fits:
        raise DataError(f"questions is {listed!r:.60}; expected a list of mappings with question, answer and kind")
    return [DrawnQuestion(*(str(each.get(key, "")) for key in ("question", "answer", "kind"))) for each in listed]
