"""Remove the local folders of the training machine from the files of an exported model."""

from __future__ import annotations

import json
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from mmrl.config.train import TrainConfig

_PLACES = ("_name_or_path", "name_or_path")
"""Keys in which diffusers and transformers record the origin of a configuration."""


def recipe_text(config: TrainConfig) -> str:
    """Return the whole configuration as YAML, with the last name alone of every absolute path."""
    values = _scrubbed(config.model_dump(mode="json"))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def without_folders(text: str) -> str:
    """Return the last name of an absolute path, and any other text as it is.

    >>> without_folders("/home/ann/models/tiny"), without_folders("org/model"), without_folders("runs/{name}")
    ('tiny', 'org/model', 'runs/{name}')
    """
    absolute = Path(text).is_absolute() or text.startswith("~") or PureWindowsPath(text).is_absolute()
    return PureWindowsPath(text).name if absolute else text  # splits at both kinds of slashes


def strip_local_paths(folder: Path) -> None:
    """Remove local paths from the JSON files of a folder; names of the hub stay."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            continue
        kept = {key: value for key, value in content.items() if key not in _PLACES or value == _scrubbed(value)}
        if kept != content:
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _scrubbed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_scrubbed(each) for each in value]
    return without_folders(value) if isinstance(value, str) else value
