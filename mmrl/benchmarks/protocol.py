"""`ProtocolConfig`: the data, question, rewards, metrics and sampling of a benchmark, from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from mmrl.config.loading.section_file import check_map, find_file, read_map
from mmrl.config.recipes import PROTOCOLS, recipes_folder
from mmrl.config.rewards import RewardConfig
from mmrl.config.section import Section


class MetricConfig(Section):
    """A metric over all answers."""

    name: str
    """A name in `mmrl.benchmarks.metrics` (mean, share_at_least, ...), or `path/to/file.py:Name`."""
    label: str
    """Its name in tables, such as `accuracy@0.5`."""
    of: str | None = None
    """The value that it aggregates: a reward, or an additional value of a reward (`geneval/graded`). Unset: the metric
    reads the answers themselves."""
    args: Mapping[str, Any] = {}
    """Settings of the metric."""


class ProtocolConfig(Section):
    """A benchmark with the settings of its paper: data format, question, rewards and metrics."""

    name: str
    title: str
    paper: str
    """The publication of the benchmark."""
    suits: Annotated[tuple[Literal["pipeline", "vlm", "image_tokens"], ...], Field(min_length=1)]
    """The kinds of policy that it applies to."""
    format: str
    """The reader of its public files: a name in `mmrl.benchmarks.readers`, or `path/to/file.py:read`."""
    files: str
    """The names and the origin of its public files, for the message when none are given."""
    ask: str = "{prompt}"
    """The question of each sample, with the words of its file at `{prompt}`."""
    task: str | None = None
    """The task of VLMs, which sets the answer format."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(min_length=1)]
    metrics: Annotated[tuple[MetricConfig, ...], Field(min_length=1)]
    """The first is the headline number of the benchmark."""
    draws: PositiveInt = 1
    """Number of answers to each sample."""
    sampling: Mapping[str, Any] = {}
    """Keys of a model's own sampling that the protocol sets, such as {temperature: 0.0}."""

    @field_validator("ask")
    @classmethod
    def _check_braces(cls, template: str) -> str:
        """Raise ValueError if curly brackets enclose anything but `prompt`."""
        if set("{}") & set(template.replace("{prompt}", "")):
            raise ValueError("curly brackets stand around nothing but the word prompt")
        return template

    def question(self, prompt: str) -> str:
        """Return `ask` with the words of a sample's file at `{prompt}`."""
        return self.ask.replace("{prompt}", prompt)

    def overridden(self, changes: Mapping[str, Any]) -> ProtocolConfig:
        """Return this protocol with other values for some of its keys, as generated data may need.

        Raises:
            pydantic.ValidationError: A value is not one of its key.
        """
        return type(self).model_validate({**self.model_dump(), **changes}, strict=False)


def protocol_names() -> list[str]:
    """Return the names of the shipped protocols, sorted."""
    return sorted(path.stem for path in (recipes_folder() / PROTOCOLS).glob("*.yaml"))


def load_protocol(name_or_path: str) -> ProtocolConfig:
    """Return a shipped protocol by name, or one of your own by the path of its YAML file.

    Raises:
        ConfigError: there is no such protocol, or its file has unknown keys or wrong values, each on its own line.
    """
    path = find_file(name_or_path, recipes_folder() / PROTOCOLS, "protocol")
    document, lines = read_map(path, ProtocolConfig)
    return check_map(ProtocolConfig, document, lines, path)
