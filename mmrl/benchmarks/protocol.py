"""`ProtocolConfig`: the data, question, rewards, metrics and sampling of a benchmark, from a YAML file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError, field_validator

from mmrl.config.loading.load import drop_unknown_keys
from mmrl.config.loading.schema import dotted
from mmrl.config.loading.yaml_text import Path as Key
from mmrl.config.loading.yaml_text import parse_yaml
from mmrl.config.recipes import PROTOCOLS, recipes_folder
from mmrl.config.rewards import RewardConfig
from mmrl.config.section import Section
from mmrl.errors import ConfigError


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
    path = _find(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path}: cannot be read: {err}") from None
    document, lines = parse_yaml(text, str(path))
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: got {document!r:.60}, expected a map with the keys of ProtocolConfig")
    problems: list[str] = []

    def report(key: Key, problem: str) -> None:
        at = next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), 1)
        problems.append(f"{path}:{at}: {dotted(key)}{problem}")

    def unknown(section: type[Section], key: Key) -> None:
        near = difflib.get_close_matches(str(key[-1]), section.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(section.model_fields)}"
        report(key, f" is not a key of {section.__name__}: {hint}")

    known = drop_unknown_keys(ProtocolConfig, document, (), unknown)
    try:
        protocol = ProtocolConfig.model_validate(known, strict=True)
    except ValidationError as err:
        for error in err.errors(include_url=False):
            missing = error["type"] == "missing"
            report(error["loc"], " is missing" if missing else f": got {error['input']!r:.80}: {error['msg']}")
    if problems:
        raise ConfigError("\n".join(problems))
    return protocol


def _find(name_or_path: str) -> Path:
    if Path(name_or_path).suffix in (".yaml", ".yml") or "/" in name_or_path:
        if not Path(name_or_path).is_file():
            raise ConfigError(f"there is no file {name_or_path}")
        return Path(name_or_path)
    names = protocol_names()
    if name_or_path not in names:
        near = difflib.get_close_matches(name_or_path, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}, and YAML files of your own"
        raise ConfigError(f"there is no protocol {name_or_path}: {hint}")
    return recipes_folder() / PROTOCOLS / f"{name_or_path}.yaml"
