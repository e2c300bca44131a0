"""How a benchmark is taken: a file of configs/evaluation/."""

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
    """One number over all rows."""

    name: str
    """In `mmrl.benchmarks.metrics`: mean, share_at_least, ..."""
    label: str
    """What tables call it, such as `accuracy@0.5`."""
    of: str | None = None
    """The value that it is made of: a reward, or one of the values that a reward gives beside its own
    (`geneval/graded`). Unset: the metric reads answers itself."""
    args: Mapping[str, Any] = {}
    """Its own settings."""


class ProtocolConfig(Section):
    """A benchmark as its paper takes it: which data in which format, how it is answered, scored and summed up."""

    name: str
    title: str
    paper: str
    """Where it was published."""
    suits: Annotated[tuple[Literal["pipeline", "vlm", "image_tokens"], ...], Field(min_length=1)]
    """The kinds of policy that it is for."""
    format: str
    """In `mmrl.benchmarks.readers`: how its public files are read."""
    files: str
    """What its public files are called and where they come from, for whoever gives none."""
    ask: str = "{prompt}"
    """What is asked of each sample, with the words of its file at `{prompt}`."""
    task: str | None = None
    """Of VLMs: how they are told to answer and how their answers are read."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(min_length=1)]
    metrics: Annotated[tuple[MetricConfig, ...], Field(min_length=1)]
    """The first is the one that the paper reports."""
    draws: PositiveInt = 1
    """Of each sample."""
    sampling: Mapping[str, Any] = {}
    """What of a subject's own sampling is set, such as {temperature: 0.0}."""

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
    """The protocols that ship, sorted."""
    return sorted(path.stem for path in (recipes_folder() / PROTOCOLS).glob("*.yaml"))


def load_protocol(name_or_path: str) -> ProtocolConfig:
    """A protocol that ships, by its name, or one of your own, by the path of its YAML file.

    Raises:
        ConfigError: there is none, or its file has an unknown key or a wrong value: all of them, a line each.
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
        raise ConfigError(f"no protocol is called {name_or_path}: {hint}")
    return recipes_folder() / PROTOCOLS / f"{name_or_path}.yaml"
