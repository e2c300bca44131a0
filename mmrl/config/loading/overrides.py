"""`a.b=c` on the command line: values laid over a parsed document before it is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    "training.max_tokens",
    "training.hacking",
    "training.save_every",
    "training.keep_every",
    "evaluation.every",
    "run.display",
    "run.place",
    "run.timeouts",
    "run.servers",
)


def parse_override(text: str) -> tuple[Path, Any]:
    """Return the path and the value of `rewards.0.weight=2`. The value is YAML; an empty one is null."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{COMMAND_LINE}: {text!r} is not an override: write a.b=value, such as optimizer.lr=1e-4")
    return tuple(int(part) if part.isdecimal() else part for part in parts), parse_yaml(
        value, f"{COMMAND_LINE}, {text}"
    )[0]


def apply_override(
    document: Mapping[str, Any], path: Path, value: Any, root: type[Section] = TrainConfig
) -> dict[str, Any]:
    """Return a copy of `document`, of the section `root`, with `value` at `path`; sections above it are created."""

    def put(annotation: Any, present: Any, done: Path) -> Any:
        if done == path:
            return value
        key = path[len(done)]
        here = (*done, key)
        if (section := section_for(annotation, present)) is not None:
            field = section.model_fields.get(str(key))
            if field is None:
                raise ConfigError(f"{COMMAND_LINE}: {unknown_key(document, section, here, root)}")
            entries = _as_map({"name": present} if isinstance(present, str) and _is_short(section) else present, done)
            default = list(field.default) if isinstance(field.default, tuple) else None
            entries[str(key)] = put(field.annotation, entries.get(str(key), default), here)
            return entries
        if is_list(annotation) or isinstance(present, list):
            items = _as_list(present, done)
            if not isinstance(key, int) or key > len(items):
                raise ConfigError(f"{COMMAND_LINE}: {dotted(here)}: {dotted(done)} is a list of {len(items)}; "
                                  f"its entries are numbered from 0, and {len(items)} adds one")  # fmt: skip
            inner = entry_type(annotation, key) if is_list(annotation) else Any
            items[key : key + 1] = [put(inner, items[key] if key < len(items) else None, here)]
            return items
        if is_free_map(annotation):
            entries = _as_map(present, done)
            entries[str(key)] = put(Any, entries.get(str(key)), here)
            return entries
        raise ConfigError(f"{COMMAND_LINE}: {dotted(here)}: {dotted(done)} is a single value and has no keys")

    changed: dict[str, Any] = put(root, document, ())
    return changed


def check_set_once(overrides: Iterable[str]) -> None:
    """Raise a ConfigError that names every key which two of these texts set, so that the first one had no effect."""
    texts: dict[Path, str] = {}
    twice = []
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals:
            continue  # another problem, with its own message
        path = rename_path(tuple(key.strip().split(".")))[0]
        earlier = next((before for before in texts if before[: len(path)] == path), None)
        if earlier is not None:
            twice.append(f"{COMMAND_LINE}: {texts[earlier]} and {text} both set {dotted(earlier)}: keep one of them")
        texts[path] = text
    if twice:
        raise ConfigError("\n".join(twice))


def check_resume_overrides(overrides: Iterable[str]) -> None:
    """Raise a ConfigError that names every override that cannot change on resume."""
    refused = [
        f"{COMMAND_LINE}: {key} cannot change on resume: optimizer state and data order belong to the old value"
        for key in (dotted(rename_path(tuple(text.partition("=")[0].strip().split(".")))[0]) for text in overrides)
        if not _is_within(key, _MAY_CHANGE_ON_RESUME)
    ]
    if refused:
        refused.append(f"What may change is {', '.join(_MAY_CHANGE_ON_RESUME)}; for anything else start a new run.")
        raise ConfigError("\n".join(refused))


def check_resume_config(trained: TrainConfig, requested: TrainConfig, source: str) -> None:
    """Raise a ConfigError that names every key of `source`, a run's config.yaml, that changed since it was trained."""
    before, after = _leaves(trained.model_dump(mode="json")), _leaves(requested.model_dump(mode="json"))
    free = [
        key
        for key in _MAY_CHANGE_ON_RESUME
        if key != "training.iterations" or requested.optimizer.schedule == "constant"
    ]
    refused = [
        f"{source}: {key} is {after.get(key)!r:.80}, and the run was trained with {before.get(key)!r:.80}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key) and not _is_within(key, free)
    ]
    if refused:
        refused.append("Put it back to resume the run, or start a new one; what may change is " + ", ".join(free) + ".")
        raise ConfigError("\n".join(refused))


def check_same_recipe(recipes: Sequence[TrainConfig]) -> None:
    """Raise a ConfigError that names every key whose value differs between the processes of a run, given by rank."""
    first, *others = (_leaves(recipe.model_dump(mode="json")) for recipe in recipes)
    differing = [
        f"{key} is {other.get(key)!r:.80} in process {rank}, and {first.get(key)!r:.80} in process 0"
        for rank, other in enumerate(others, start=1)
        for key in dict.fromkeys([*first, *other])
        if other.get(key) != first.get(key)
    ]
    if differing:
        raise ConfigError("\n".join([*differing, "Start all processes with the same recipe."]))


def _is_within(key: str, sections: Iterable[str]) -> bool:
    """Return whether a dotted key is one of some sections or lies in one."""
    return any(f"{key}.".startswith(f"{section}.") for section in sections)


def _leaves(section: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values by dotted key; a list is a value."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        here = f"{above}{key}"
        found |= _leaves(value, f"{here}.") if isinstance(value, Mapping) and value else {here: value}
    return found


def _is_short(section: type[Section]) -> bool:
    """Return whether a component's name alone stands for the section."""
    return issubclass(section, ComponentSection) and section.shorthand


def _as_map(present: Any, path: Path) -> dict[str, Any]:
    if present is None:
        return {}
    if isinstance(present, Mapping):
        return dict(present)
    raise ConfigError(f"{COMMAND_LINE}: {dotted(path)} is {present!r}, not a map, so nothing can be set below it")


def _as_list(present: Any, path: Path) -> list[Any]:
    if present is None:
        return []
    if isinstance(present, list):
        return list(present)
    raise ConfigError(f"{COMMAND_LINE}: {dotted(path)} is {present!r}, not a list, so no entry of it can be set")
