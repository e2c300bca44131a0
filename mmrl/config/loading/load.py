"""A recipe and overrides in, a checked `TrainConfig` out; or one error that names everything wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from mmrl.config.loading.overrides import COMMAND_LINE, apply_override, parse_override
from mmrl.config.loading.renamed import rename_keys, rename_path, warn_of_renamed
from mmrl.config.loading.schema import (
    child,
    dotted,
    entry_type,
    is_list,
    map_type,
    nearest_keys,
    section_for,
    section_tagged,
    sections_in,
    tag_key,
    unknown_key,
)
from mmrl.config.loading.yaml_text import Path, dump_yaml, parse_yaml
from mmrl.config.recipes import find_recipe
from mmrl.config.sampling import SAMPLING_OF
from mmrl.config.section import STRICT, Section
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError
from mmrl.suggestions import did_you_mean

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text (in quotes, if it looks like a number)",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
}
_IN_PLACE_OF_NULL = {"a map": ": write {} for the defaults", "a list": ": write [] for none"}


def load_config(recipe: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration of a YAML file, a shipped recipe or a task, with `a.b=c` overrides laid over it.

    Raises:
        ConfigError: the recipe is not found, or has an unknown key or a wrong value. All problems at once, one a
            line, each with file and line number or `command line`.
    """
    path = find_recipe(recipe).path
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: not UTF-8 text ({err.reason} at byte {err.start})") from None
    return parse_config(text, str(path), overrides)


def parse_config(text: str, source: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """As `load_config`, of YAML text. `source` names the text in messages."""
    document, lines = parse_yaml(text, source)
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: got {_to_text(document)}, expected a map with the keys of TrainConfig")
    places: dict[Path, str] = {(): source} | {path: f"{source}:{line}" for path, line in lines.items()}
    problems: list[str] = []
    document, renamed = rename_keys(document)
    for old in renamed:
        warn_of_renamed(
            old, next((at for path, at in places.items() if dotted(rename_path(path)[0]) == renamed[old]), source)
        )
    places = {rename_path(path)[0]: at for path, at in places.items()}
    for override in overrides:
        try:
            path, value = parse_override(override)
            path, old_keys = rename_path(path)
            if path[0] in ("sampling", "evaluation", "models"):  # whose keys depend on the kind of policy
                document = _with_sampling_kinds(document)
            document, renamed = rename_keys(apply_override(document, path, value))
            for old in (*old_keys, *renamed):
                warn_of_renamed(old, COMMAND_LINE)
        except ConfigError as err:
            problems.append(str(err))
            continue
        places = {known: at for known, at in places.items() if known[: len(path)] != path}
        places[path] = COMMAND_LINE

    document = _with_sampling_kinds(document)

    def report(path: Path, problem: str) -> None:
        at = next(places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in places)
        problems.append(f"{at}: {problem}")

    config = _check(document, report)
    if config is not None and _adapters_have_no_use(config):
        for path in (path for path, at in places.items() if path[:2] == ("policy", "lora") and at == COMMAND_LINE):
            report(
                path, f"{dotted(path)} has no effect with policy.train: {config.policy.train}; add policy.train=lora"
            )
    if config is None or problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return config


def _adapters_have_no_use(config: TrainConfig) -> bool:
    """Return whether neither the policy nor a model beside it, which may take the policy's settings, has adapters."""
    return "lora" not in {config.policy.train, *(model.train for model in config.models.values())}


def dump_config(config: TrainConfig) -> str:
    """The configuration as YAML with every default written out; it loads back equal."""
    return dump_yaml(config.model_dump())


def _with_sampling_kinds(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the kind of each sampling section filled in, which follows from the policy's."""
    policy = document.get("policy")
    kind = SAMPLING_OF.get(str(policy.get("kind", "pipeline"))) if isinstance(policy, dict) else None
    if kind is None:
        return document
    filled = dict(document)
    if isinstance(models := document.get("models"), dict):
        filled["models"] = {name: _with_own_sampling_kind(model, kind) for name, model in models.items()}
    if isinstance(sampling := document.get("sampling", {}), dict):
        filled["sampling"] = {"kind": kind} | sampling
    evaluation = document.get("evaluation")
    if isinstance(evaluation, dict) and isinstance(sampling := evaluation.get("sampling"), dict):
        filled["evaluation"] = evaluation | {"sampling": {"kind": kind} | sampling}
    return filled


def _with_own_sampling_kind(model: Any, kind: str) -> Any:
    """Return a section of `models` with the kind of its sampling; `kind` is that of the policy's."""
    if not isinstance(model, dict) or not isinstance(sampling := model.get("sampling"), dict):
        return model
    return model | {"sampling": {"kind": SAMPLING_OF.get(str(model.get("kind")), kind)} | sampling}


def _check(document: dict[str, Any], report: Callable[[Path, str], None]) -> TrainConfig | None:
    """The configuration, or None after reporting what is wrong with it."""
    meant: set[Path] = set()  # keys that are there under a misspelt name: not to be called missing as well

    def unknown(section: type[Section], path: Path) -> None:
        meant.update(nearest_keys(document, path))
        report(path, unknown_key(document, section, path))

    known = drop_unknown_keys(TrainConfig, document, (), unknown)
    try:
        return TrainConfig.model_validate(known, strict=True, context=STRICT)
    except ValidationError as err:
        for error in err.errors(include_url=False):
            path, problem = _explain(error, document)
            if path not in meant:
                report(path, problem)
        return None


def drop_unknown_keys(annotation: Any, value: Any, path: Path, unknown: Callable[[type[Section], Path], None]) -> Any:
    """`value` without unknown keys, which are handed to `unknown`, and with tuples where sections hold tuples."""
    section = section_for(annotation, value)
    if section is not None and isinstance(value, dict):
        kept = {}
        for key, inner in value.items():
            field = section.model_fields.get(key)
            if field is None:
                unknown(section, (*path, key))
            else:
                kept[key] = drop_unknown_keys(field.annotation, inner, (*path, key), unknown)
        return kept
    if is_list(annotation) and isinstance(value, list):
        return tuple(drop_unknown_keys(entry_type(annotation, i), v, (*path, i), unknown) for i, v in enumerate(value))
    if isinstance(value, dict) and (values := map_type(annotation)) is not None:
        return {key: drop_unknown_keys(values, inner, (*path, key), unknown) for key, inner in value.items()}
    return value


def _explain(error: Any, document: Any) -> tuple[Path, str]:
    """The key that one of pydantic's errors is about, and what is wrong there."""
    kind, context = error["type"], error.get("ctx", {})
    path, help_text, annotation = _without_variant_tags(error["loc"], document)
    if kind == "missing":
        return path, f"{dotted(path)} is missing" + (f": {help_text}" if help_text else "")
    if kind == "union_tag_invalid":
        path = (*path, tag_key(sections_in(annotation)))
        choices, value = re.findall(r"'([^']*)'", context["expected_tags"]), context["tag"]
    elif kind == "unknown_component":
        choices = re.findall(r"'([^']*)'", context["expected"])
        if isinstance(value := error["input"], dict):
            path, value = (*path, "name"), value.get("name")
    elif kind == "component_error":
        return (*path, "name"), f"{dotted((*path, 'name'))}: {context['message']}"
    elif kind == "literal_error":
        choices, value = re.findall(r"'([^']*)'", context["expected"]), error["input"]
    else:
        expected, instead = expectation(error)
        return path, f"{dotted(path)}: got {_to_text(error['input'])}, expected {expected}{instead}"
    expected = " or ".join(choices) if choices else context["expected"]
    return path, f"{dotted(path)}: got {_to_text(value)}, expected {expected}{_nearest_choice(value, choices)}"


def expectation(error: Any) -> tuple[str, str]:
    """Return what one of pydantic's errors expected, and, if null stood there, what to write in its place."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    expected = _EXPECTED.get(error["type"], message)
    return expected, _IN_PLACE_OF_NULL.get(expected, "") if error["input"] is None else ""


def _without_variant_tags(loc: tuple[str | int, ...], document: Any) -> tuple[Path, str, Any]:
    """Pydantic's place of an error as a key path (it also names the variant of a section), the key's help and type."""
    annotation: Any = TrainConfig
    value = document
    path: list[str | int] = []
    help_text, tags = "", 0
    for part in loc:
        if tags:
            annotation = section_tagged(sections_in(annotation), part)
            tags = 0
            continue
        path.append(part)
        section = section_for(annotation, value)
        value = child(value, part)
        if section is not None and part in section.model_fields:
            field = section.model_fields[str(part)]
            annotation, help_text = field.annotation, " ".join((field.description or "").split())
            tags = len(sections_in(annotation)) > 1
        elif isinstance(part, int) and is_list(annotation):
            annotation, help_text = entry_type(annotation, part), ""
        else:
            annotation, help_text = Any, ""
    return tuple(path), help_text, annotation


def _nearest_choice(value: Any, choices: Sequence[str]) -> str:
    return did_you_mean(value.lower(), choices, before=": ") if isinstance(value, str) else ""


def _to_text(value: Any) -> str:
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    text = {None: "null", True: "true", False: "false"}.get(value) if value is None or isinstance(value, bool) else None
    text = text or repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
