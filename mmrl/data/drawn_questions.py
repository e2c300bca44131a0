"""Questions about pictures that a model of the run draws, whose answers its prompts give (UniRL, arXiv:2505.23380).

A sample of a prompt lists them in its metadata, with the answers that a right picture has:

    {"prompt": "two red circles", "metadata": {"questions": [{"question": "How many red circles?", "answer": "2"}]}}
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from mmrl.data.media.uris import png_uri
from mmrl.data.sample import Sample
from mmrl.data.written_prompts import QuestionReader
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


class DrawnPictures(QuestionReader):
    """A reader of pictures, for a policy that answers about what a model of the run draws.

    `data.prompts: {name: written, by: painter, reader: {name: drawn_pictures}}`. Samples are prompts for the painter
    with `questions` in their metadata, of which the picture decides one. None is refused.
    """

    reads = "picture"

    def request(self, parent: Sample) -> Sample:
        """Return the sample itself."""
        return parent

    def read(self, text: Any, parent: Sample) -> Sample | None:
        """Return a question about a picture.

        Raises:
            DataError: the sample has no questions, or the model wrote a text.
        """
        found = questions_of(parent.metadata.get("questions", ()))
        if not found or not isinstance(text, Image.Image):
            lacks = "has no metadata.questions" if not found else "was answered by a text, not by a picture"
            raise DataError(f"sample {parent.id!r} {lacks} (data.prompts.reader: drawn_pictures)")
        picture = png_uri(text)
        chosen = found[zlib.crc32(picture.encode()) % len(found)]
        return replace(parent, prompt=chosen.question, messages=(), images=(picture,), answer=chosen.answer)
