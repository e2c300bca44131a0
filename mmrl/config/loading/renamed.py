"""Keys that were renamed: recipes, overrides and runs with the old ones still load, with one FutureWarning for each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from mmrl.config.loading.yaml_text import Path
from mmrl.errors import ConfigError

_SAMPLING = {
    "branch.ways": "branch.branching_factor",
    "transition.learned.pace": "transition.learned.lr_scale",
}
_ALGORITHM = {
    "times": "num_noise_levels",
    "advantage.contrast": "advantage.extremes_threshold",
    "advantage.at_least": "advantage.min_value",
}
RENAMED_KEYS = {
    "warmup": "pretraining",
    "data.draws": "data.group_sampling",
    "media.on_bad": "media.on_error",
    "training.kl_budget": "training.max_kl",
    "policy.vision.pace": "policy.vision.lr_scale",
    "policy.connector.pace": "policy.connector.lr_scale",
    **{f"{at}.{old}": f"{at}.{new}" for at in ("sampling", "evaluation.sampling") for old, new in _SAMPLING.items()},
    **{
        f"{at}.{old}": f"{at}.{new}" for at in ("algorithm", "pretraining.algorithm") for old, new in _ALGORITHM.items()
    },
}
"""Old dotted key -> new one. They are applied in this order, so a key below a renamed one stands below its new name."""


def rename_keys(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a copy of a configuration under its present keys, and the old keys that it had, each with its new one.

    Raises:
        ConfigError: a key is there under both names.
    """
    renamed, found = dict(document), {}
    for old, new in RENAMED_KEYS.items():
        *above, key = old.split(".")
        if key in (_map_at(renamed, above) or {}):
            renamed, found[old] = _rename(renamed, above, key, new), new
    return renamed, found


def rename_path(path: Path) -> tuple[Path, list[str]]:
    """Return the present path of a key, and the old keys that `path` goes through."""
    found = []
    for old, new in RENAMED_KEYS.items():
        before = tuple(old.split("."))
        if path[: len(before)] == before:
            path = (*new.split("."), *path[len(before) :])
            found.append(old)
    return path, found


def warn_of_renamed(old: str, place: str) -> None:
    """Warn that a configuration uses an old key; `place` is a file and line, or `command line`."""
    text = f"{place}: {old} is called {RENAMED_KEYS[old]} now; the old name is read until the next release"
    warnings.warn(text, FutureWarning, stacklevel=2)


def _map_at(document: Mapping[str, Any], path: list[str]) -> Mapping[str, Any] | None:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _rename(section: Mapping[str, Any], above: list[str], key: str, new: str) -> dict[str, Any]:
    """Return a copy in which the key has its new name and its place among the others."""
    if above:
        return dict(section) | {above[0]: _rename(section[above[0]], above[1:], key, new)}
    name = new.rpartition(".")[2]
    if name in section:
        raise ConfigError(f"{new}: it is also there under its old name, {key}: keep one of them")
    return {name if each == key else each: value for each, value in section.items()}
