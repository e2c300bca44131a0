"""Questions about pictures that a model of the run draws, whose answers its prompts give (UniRL, arXiv:2505.23380).

A sample of a prompt lists them in its metadata, with the answers that a right picture has:

    {"prompt": "two red circles", "metadata": {"questions": [{"question": "How many red circles?", "answer": "2"}]}}
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from PIL import Image

from mmrl.data.listed_questions import questions_of
from mmrl.data.media.uris import png_uri
from mmrl.data.sample import Sample
from mmrl.data.written_prompts import QuestionReader
from mmrl.errors import DataError


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
