"""Prompts that a model of the run writes: `data.prompts: {name: written}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from mmrl.components import Registry
from mmrl.config.section import Section, registered

QUESTION_READERS: Registry[Any] = Registry(
    "mmrl.question_readers", "question reader", {}, base="mmrl.data.written_prompts:QuestionReader"
)
"""The readers of written questions by name; packages add theirs in the entry-point group `mmrl.question_readers`."""


class ReaderConfig(Section):
    """A reader of written questions by name, with its settings."""

    name: Annotated[str, registered(QUESTION_READERS)]
    """An installed reader, or `path/to/file.py:Class` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the reader's constructor."""

    def reader(self) -> Any:
        """Return the reader, a `mmrl.data.written_prompts.QuestionReader`.

        Raises:
            ConfigError: it cannot be imported, or does not take these arguments.
        """
        return QUESTION_READERS.build(self.name, self.args, "data.prompts.reader")


class WrittenPromptsConfig(Section):
    """Questions that a model of the run writes anew in each iteration (PasoDoble, arXiv:2511.11881)."""

    name: Literal["written"] = "written"
    by: str
    """The model that writes, by its name in `models`."""
    reader: ReaderConfig
    """The reader that makes a sample of a text, with its answer, or refuses it."""
    tries: PositiveInt = 2
    """The texts that are written for each sample; where none is a question, one of the data set is taken."""
