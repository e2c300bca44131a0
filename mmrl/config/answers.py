"""The form of a vision-language model's answers."""

from __future__ import annotations

from typing import Literal

from mmrl.config.section import Section


class AnswersConfig(Section):
    """The text that tasks add to the prompts of samples that name a `task` and no rewards."""

    task: str | None = None
    """The task of samples that name neither a task nor rewards."""
    thinking: Literal["off", "tags", "native"] = "off"
    """`tags`: the prompt requests reasoning between <think> tags and the answer between <answer> tags, and a format
    reward checks that. `native`: the model reasons as its makers trained it to. `off`: the answer alone."""
    space: Literal["pixel", "norm_1", "norm_1000"] | None = None
    """The unit of coordinates in answers; unset: the one that the model's family was trained with."""
