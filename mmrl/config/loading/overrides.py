"""`a.b=c` on the command line: values laid over a parsed document before it is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmrl.config.loading.renamed import rename_path
from mmrl.config.loading.schema import dotted, entry_type, is_free_map, is_list, section_for, unknown_key
from mmrl.config.loading.yaml_text import Path, parse_yaml
from mmrl.config.section import ComponentSection, Section
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError

COMMAND_LINE = "command line"
_MAY_CHANGE_ON_RESUME = (
    "training.iterations",
    "training.max_kl",
    "training.save_every",
    "evaluation.every",
    "run.display",
)


def parse_override(text: str) -> tuple[Path, Any]:
    """`rewards.0.weight=2` as a path and a value. The value is YAML; nothing after `=` is null."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{COMMAND_LINE}: {text!r} is not an override: write a.b=value, such as optimizer.lr=1e-4")
    return tuple(int(part) if part.isdecimal() else part for part in parts), parse_yaml(
        value, f"{COMMAND_LINE}, {text}"
    )[0]


def apply_override(document: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of `document` with `value` at `path`; sections and lists on the way come into being."""

    def put(annotation: Any, held: Any, done: Path) -> Any:
        if done == path:
            return value
        key = path[len(done)]
        here = (*done, key)
        if (section := section_for(annotation, held)) is not None:
            field = section.model_fields.get(str(key))
            if field is None:
                raise ConfigError(f"{COMMAND_LINE}: {unknown_key(document, section, here)}")
            entries = _as_map({"name": held} if isinstance(held, str) and _is_short(section) else held, done)
            default = list(field.default) if isinstance(field.default, tuple) else None
            entries[str(key)] = put(field.annotation, entries.get(str(key), default), here)
            return entries
        if is_list(annotation) or isinstance(held, list):
            items = _as_list(held, done)
            if not isinstance(key, int) or key > len(items):
                raise ConfigError(f"{COMMAND_LINE}: {dotted(here)}: {dotted(done)} is a list of {len(items)}; "
                                  f"its entries are numbered from 0, and {len(items)} adds one")  # fmt: skip
            inner = entry_type(annotation, key) if is_list(annotation) else Any
            items[key : key + 1] = [put(inner, items[key] if key < len(items) else None, here)]
            return items
        if is_free_map(annotation):
            entries = _as_map(held, done)
            entries[str(key)] = put(Any, entries.get(str(key)), here)
            return entries
        raise ConfigError(f"{COMMAND_LINE}: {dotted(here)}: {dotted(done)} is a single value and has no keys")

    changed: dict[str, Any] = put(TrainConfig, document, ())
    return changed


def refuse_changes_on_resume(overrides: Iterable[str]) -> None:
    """Raise for every override that a run under way cannot take."""
    refused = [
        f"{COMMAND_LINE}: {key} cannot change on resume: optimizer state and data order belong to the old value"
        for key in (dotted(rename_path(tuple(text.partition("=")[0].strip().split(".")))[0]) for text in overrides)
        if not any(f"{key}.".startswith(f"{free}.") for free in _MAY_CHANGE_ON_RESUME)
    ]
    if refused:
        refused.append(f"What may change is {', '.join(_MAY_CHANGE_ON_RESUME)}; for anything else start a new run.")
        raise ConfigError("\n".join(refused))


def refuse_edits_on_resume(trained: TrainConfig, asked: TrainConfig, source: str) -> None:
    """Raise for every key of a run's configuration, the file `source`, that is not as it was trained with."""
    before, after = _leaves(trained.model_dump(mode="json")), _leaves(asked.model_dump(mode="json"))
    free = [
        key for key in _MAY_CHANGE_ON_RESUME if key != "training.iterations" or asked.optimizer.schedule == "constant"
    ]
    refused = [
        f"{source}: {key} is {after.get(key)!r:.80}, and the run was trained with {before.get(key)!r:.80}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key) and key not in free
    ]
    if refused:
        refused.append("Put it back to resume the run, or start a new one; what may change is " + ", ".join(free) + ".")
        raise ConfigError("\n".join(refused))


def _leaves(section: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values by dotted key; a list is a value."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        here = f"{above}{key}"
        found |= _leaves(value, f"{here}.") if isinstance(value, Mapping) and value else {here: value}
    return found


def _is_short(section: type[Section]) -> bool:
    """Whether a component's name alone stands for the section."""
    return issubclass(section, ComponentSection) and section.shorthand


def _as_map(held: Any, path: Path) -> dict[str, Any]:
    if held is None:
        return {}
    if isinstance(held, Mapping):
        return dict(held)
    raise ConfigError(f"{COMMAND_LINE}: {dotted(path)} is {held!r}, not a map, so nothing can be set below it")


def _as_list(held: Any, path: Path) -> list[Any]:
    if held is None:
        return []
    if isinstance(held, list):
        return list(held)
    raise ConfigError(f"{COMMAND_LINE}: {dotted(path)} is {held!r}, not a list, so no entry of it can be set")
