"""Prompts that a model of the run writes: `data.prompts: {name: written}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt

from mmrl.components import Registry
from mmrl.config.named_models import POLICY, kind_of
from mmrl.config.section import Section, registered
from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

QUESTION_READERS: Registry[Any] = Registry(
    "mmrl.question_readers",
    "question reader",
    {
        "captions": "mmrl.data.written_prompts:Captions",
        "drawn_pictures": "mmrl.data.written_prompts:DrawnPictures",
        "instructions": "mmrl.data.written_prompts:Instructions",
    },
    base="mmrl.data.written_prompts:QuestionReader",
)
"""The readers of written questions by name; packages add theirs in the entry-point group `mmrl.question_readers`."""


class ReaderConfig(Section):
    """A reader of written questions by name, with its settings."""

    name: Annotated[str, registered(QUESTION_READERS)]
    """`captions`, `drawn_pictures`, `instructions`, an installed one, or `path/to/file.py:Class` of your own."""
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
    """The model that writes or draws, by its name in `models`; or `policy`, for a model that draws what the policy
    writes."""
    reader: ReaderConfig
    """The reader that makes a sample of a text or of a picture, with its answer, or refuses it."""
    tries: PositiveInt = 2
    """The texts or pictures that are made for each sample; where none is a question, one of the data set is taken."""


def written_prompt_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each problem with prompts that a model of the run is to write."""
    chosen = config.data.prompts
    if not isinstance(chosen, WrittenPromptsConfig):
        return
    if config.data.replay is not None:
        yield "data.replay: written prompts come once, so that their answers cannot be replayed: leave it out"
    try:
        reads = QUESTION_READERS.load(chosen.reader.name).reads
    except ConfigError:  # which names the key where the reader is built
        return
    texts = [name for name, model in config.models.items() if model.head == "text"]
    known = [name for name in dict.fromkeys((POLICY, *texts)) if (kind_of(config, name) == "vlm") == (reads == "text")]
    if chosen.by not in known:
        does = "writes texts" if reads == "text" else "draws pictures"
        yield (
            f"data.prompts.by: {chosen.by} is no model of the run that {does} ({', '.join(known) or 'none'}), which "
            f"the reader {chosen.reader.name} reads: add it to models"
        )
