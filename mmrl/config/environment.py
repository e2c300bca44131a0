"""The environment of a run: its name, its tools, and the limits of an episode."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from mmrl.config.section import Section

_OF_TOOLS = ("tools", "format", "first_turn", "deadline_s")
"""The keys that only the environment `tools` has."""


class ToolConfig(Section):
    """A tool by name, with its settings."""

    name: str
    """As registered (`mmrl environments list`), or `path/to/file.py:name` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the tool's constructor."""


class EnvironmentConfig(Section):
    """An environment by name, with its settings."""

    name: str = "tools"
    """As registered (`mmrl environments list`), or `path/to/file.py:Class` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the environment's constructor."""
    max_turns: PositiveInt | None = None
    """The largest number of actions of an episode; unset: as the environment says."""
    horizon: tuple[PositiveInt, ...] = ()
    """The largest number of actions of an episode in training, in parts of equally many iterations: [2, 4, 7] allows 2
    in the first third (ScalingInter-RL, arXiv:2509.08755). Evaluations have `max_turns`."""
    context_tokens: PositiveInt | None = None
    """The most tokens of a trajectory, prompt and observations included: an episode ends before a turn of
    `sampling.max_new_tokens` that might not fit. Unset: as many as the model has positions for."""
    waves: PositiveInt = 1
    """Parts of a call that are written one after another, so that the environment answers one part while the next is
    written. Above 1, tools that take as long as writing a turn cost little; smaller parts use a GPU less."""
    tools: tuple[ToolConfig, ...] = ()
    """The tools of the environment `tools`."""
    format: str = "auto"
    """The format of calls of the environment `tools`: auto (the model family's own), hermes, qwen_xml, internlm, llama,
    mistral or gemma."""
    first_turn: Literal["free", "must_call"] = "free"
    """`must_call`: a first turn of the environment `tools` without a call is answered with a reminder."""
    deadline_s: PositiveFloat = 30.0
    """Seconds of one call of a tool of the environment `tools`; a call that takes longer makes its episode void."""

    @model_validator(mode="after")
    def _tools_belong_to_the_environment_of_tools(self) -> EnvironmentConfig:
        names = [tool.name for tool in self.tools]
        if self.name == "tools":
            if not names:
                raise ValueError("tools: name at least one, as in tools: [{name: crop}]")
            if len(set(names)) != len(names):
                raise ValueError(f"tools: each at most once, not {', '.join(names)}")
        elif own := [key for key in _OF_TOOLS if getattr(self, key) != type(self).model_fields[key].default]:
            raise ValueError(f"{own[0]} is a key of the environment tools; settings of {self.name} go into args")
        return self
