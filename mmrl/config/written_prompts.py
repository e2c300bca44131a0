"""Prompts that a model of the run writes: `data.prompts: {name: written}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt

from mmrl.components import Registry
from mmrl.config.named_models import POLICY, kind_of
from mmrl.config.section import Section, registered

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

QUESTION_READERS: Registry[Any] = Registry(
    "mmrl.question_readers",
    "question reader",
    {
        "captions": "mmrl.data.written_captions:Captions",
        "instructions": "mmrl.data.written_instructions:Instructions",
    },
    base="mmrl.data.written_prompts:QuestionReader",
)
"""The readers of written questions by name; packages add theirs in the entry-point group `mmrl.question_readers`."""


class ReaderConfig(Section):
    """A reader of written questions by name, with its settings."""

    name: Annotated[str, registered(QUESTION_READERS)]
    """`captions`, `instructions`, an installed reader, or `path/to/file.py:Class` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the reader's constructor."""

    def reader(self, key: str = "data.prompts.reader") -> Any:
        """Return the reader, a `mmrl.data.written_prompts.QuestionReader`; `key` is where errors say it is named.

        Raises:
            ConfigError: it cannot be imported, or does not take these arguments.
        """
        return QUESTION_READERS.build(self.name, self.args, key)


class WrittenPromptsConfig(Section):
    """Questions that a model of the run writes anew in each iteration (PasoDoble, arXiv:2511.11881)."""

    name: Literal["written"] = "written"
    by: str
    """The model that writes, by its name in `models`; or `policy`, for a model that draws what the policy writes."""
    reader: ReaderConfig
    """The reader that makes a sample of a text, with its answer, or refuses it."""
    tries: PositiveInt = 2
    """The texts that are written for each sample; where none is a question, one of the data set is taken."""


def written_prompt_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each problem with prompts that a model of the run is to write."""
    chosen = config.data.prompts
    if not isinstance(chosen, WrittenPromptsConfig):
        return
    texts = [name for name, model in config.models.items() if model.head == "text"]
    writers = [name for name in dict.fromkeys((POLICY, *texts)) if kind_of(config, name) == "vlm"]
    if chosen.by not in writers:
        known = ", ".join(writers) or "none"
        yield f"data.prompts.by: {chosen.by} is no model of the run that writes texts ({known}): add it to models"
    if config.data.replay is not None:
        yield "data.replay: written prompts come once, so that their answers cannot be replayed: leave it out"
