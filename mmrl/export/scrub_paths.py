"""What an exported folder need not tell: the folders of the machine that it was trained on."""

from __future__ import annotations

import json
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from mmrl.config.train import TrainConfig

_PLACES = ("_name_or_path", "name_or_path")
"""Where diffusers and transformers note what a configuration was loaded from."""


def recipe_text(config: TrainConfig) -> str:
    """The whole configuration, of folders their last name alone."""
    told = _everywhere(config.model_dump(mode="json"))
    return yaml.safe_dump(told, sort_keys=False, allow_unicode=True)


def without_folders(text: str) -> str:
    """The last name of an absolute path; anything else as it is.

    >>> without_folders("/home/ann/models/tiny"), without_folders("org/model"), without_folders("runs/{name}")
    ('tiny', 'org/model', 'runs/{name}')
    """
    absolute = Path(text).is_absolute() or text.startswith("~") or PureWindowsPath(text).is_absolute()
    return PureWindowsPath(text).name if absolute else text  # which knows both kinds of slashes


def strip_local_paths(folder: Path) -> None:
    """Strike local paths from the configuration files of a folder; where a model came from on the hub is left."""
    for path in folder.rglob("*.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            continue
        if known := [
            key for key in _PLACES if isinstance(told.get(key), str) and without_folders(told[key]) != told[key]
        ]:
            kept = {key: value for key, value in told.items() if key not in known}
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _everywhere(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _everywhere(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_everywhere(each) for each in value]
    return without_folders(value) if isinstance(value, str) else value
