"""`Captions`: the prompts of a painter are captions that a model of the run writes of the pictures of samples."""

from __future__ import annotations

from dataclasses import replace

from mmrl.data.sample import Sample
from mmrl.data.written_prompts import QuestionReader


class Captions(QuestionReader):
    """A reader of captions, for a stage that trains a painter: `data.prompts: {name: written, by: policy, ...}`.

    Samples are those of the model that writes: their prompt is the request for a caption, with a picture. The painter's
    have the caption in its place; their picture stays for rewards, such as `reconstruction`. An empty text is refused.
    """

    def request(self, parent: Sample) -> Sample:
        """Return the sample itself."""
        return parent

    def read(self, text: str, parent: Sample) -> Sample | None:
        """Return the sample with the caption as its prompt."""
        caption = text.strip()
        return replace(parent, prompt=caption, messages=()) if caption else None
