"""Files that hold one section, such as a protocol or a study: found by name or path, read, and checked by line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mmrl.config.loading.load import drop_unknown_keys, expectation
from mmrl.config.loading.overrides import COMMAND_LINE
from mmrl.config.loading.schema import dotted, section_for
from mmrl.config.loading.yaml_text import Path as Key
from mmrl.config.loading.yaml_text import parse_yaml
from mmrl.config.section import Section
from mmrl.errors import ConfigError
from mmrl.suggestions import did_you_mean

S = TypeVar("S", bound=Section)
MOST_NAMES = 20
"""The names that a message lists; a command lists more."""


def find_file(name_or_path: str, folder: Path, kind: str) -> Path:
    """Return the file of a shipped name in `folder`, or a YAML file by its path; `kind` is the word in messages.

    Raises:
        ConfigError: there is no such file or name.
    """
    if Path(name_or_path).suffix in (".yaml", ".yml") or "/" in name_or_path:
        if not Path(name_or_path).is_file():
            raise ConfigError(f"there is no file {name_or_path}")
        return Path(name_or_path)
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name_or_path not in names:
        hint = did_you_mean(name_or_path, names, count=3, likeness=0.5)
        if not hint:
            known = f"there are {', '.join(names)}" if len(names) <= MOST_NAMES else f"`mmrl {kind} list` names all"
            hint = f"{known}, and YAML files of your own"
        raise ConfigError(f"there is no {kind} {name_or_path}: {hint}")
    return folder / f"{name_or_path}.yaml"


def read_map(path: Path, section: type[Section]) -> tuple[dict[str, Any], dict[Key, int]]:
    """Return the map in a YAML file, and the line of each key; `section` names the keys in messages.

    Raises:
        ConfigError: the file cannot be read, or contains no map.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path}: cannot be read: {err}") from None
    document, lines = parse_yaml(text, str(path))
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: got {document!r:.60}, expected a map with the keys of {section.__name__}")
    return document, lines


def check_map(
    section: type[S], document: dict[str, Any], lines: dict[Key, int], path: Path, overridden: Collection[Key] = ()
) -> S:
    """Return the section that a map fills. `overridden` are the keys that the command line has set.

    Raises:
        ConfigError: unknown keys or wrong values, each on its own line.
    """
    problems: list[str] = []

    def report(key: Key, problem: str) -> None:
        at = next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), 1)
        place = COMMAND_LINE if any(key[: len(each)] == each for each in overridden) else f"{path}:{at}"
        problems.append(f"{place}: {dotted(key)}{problem}")

    def unknown(inner: type[Section], key: Key) -> None:
        hint = did_you_mean(str(key[-1]), inner.model_fields) or f"there are {', '.join(inner.model_fields)}"
        report(key, f" is not a key of {inner.__name__}: {hint}")

    known = drop_unknown_keys(section, document, (), unknown)
    try:
        checked = section.model_validate(known, strict=True)
    except ValidationError as err:
        for error in err.errors(include_url=False):
            if error["loc"]:
                report(error["loc"], _explanation(section, error))
            else:
                problems.append(f"{path}: {error['msg'].removeprefix('Value error, ')}")
    if problems:
        raise ConfigError("\n".join(problems))
    return checked


def _explanation(section: type[Section], error: Any) -> str:
    """Return what is wrong with the value of a key, by one of pydantic's errors, as text that follows the key."""
    if error["type"] == "missing":
        return " is missing"
    expected, instead = expectation(error)
    if error["type"] == "value_error":
        return f": {expected}"
    if error["type"] == "model_type" and len(error["loc"]) == 1:
        inner = section_for(section.model_fields[error["loc"][0]].annotation, error["input"])
        expected += f" of {', '.join(inner.model_fields)}" if inner else ""
    got = "null" if error["input"] is None else repr(error["input"])
    return f": got {got:.80}, expected {expected}{instead}"
