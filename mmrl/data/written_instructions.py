"""`Instructions`: the prompts of an editor are what a model of the run writes behind its thoughts about a picture."""

from __future__ import annotations

from dataclasses import replace

from mmrl.data.sample import Sample
from mmrl.data.written_prompts import QuestionReader


class Instructions(QuestionReader):
    """A reader of instructions, for an editor of the picture that the writer sees (ThinkRL-Edit, arXiv:2601.03467).

    Samples are those of the model that writes: their prompt is the user's request, with the picture to edit. The
    editor's have the text behind the last `behind` as their prompt, or the whole text where that is not written, and
    the picture as a condition. Where nothing stands there, the editor gets the user's own words.
    """

    def __init__(self, behind: str = "</think>", condition: str = "image") -> None:
        """`condition` is the name of the pipeline's argument for the picture."""
        self._behind, self._condition = behind, condition

    def request(self, parent: Sample) -> Sample:
        """Return the sample itself."""
        return parent

    def read(self, text: str, parent: Sample) -> Sample:
        """Return the editor's sample.

        Raises:
            ValueError: the user's sample does not have one picture.
        """
        if len(parent.images) != 1:
            raise ValueError(f"sample {parent.id!r} has {len(parent.images)} images, and an edit starts from one")
        instruction = text.rpartition(self._behind)[2].strip() or parent.last_text
        condition = {self._condition: parent.images[0]}
        return replace(parent, prompt=instruction, messages=(), images=(), conditions=condition)
