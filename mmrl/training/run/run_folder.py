"""Run folders: made once, read by everyone."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrl.atomic_io import replace_text
from mmrl.config.loading.load import load_config
from mmrl.config.loading.overrides import refuse_edits_on_resume
from mmrl.config.loading.renamed import rename_keys
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.trackers import METRICS

CONFIG = "config.yaml"


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: Path
    config: TrainConfig

    def metrics(self, kind: str = "train") -> list[dict[str, Any]]:
        """The lines of metrics.jsonl of one kind, `train` or `evaluation`."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    def checkpoint(self, which: str = "last") -> Path:
        """The folder of the last or best checkpoint."""
        return Checkpoints(self.folder).path(which)

    def step(self) -> int:
        """Iterations done at the last checkpoint."""
        return int(self.checkpoint().name.removeprefix("step-"))


def load_run(folder: Path) -> Run:
    """Open a run folder.

    Raises:
        ConfigError: it is not one.
    """
    config = Path(folder) / CONFIG
    if not config.is_file():
        raise ConfigError(f"{folder} is no run folder: it has no {CONFIG}")
    return Run(Path(folder), load_config(str(config)))


def run_folder(config: TrainConfig) -> Path:
    """Where a run of this configuration goes."""
    return Path(config.run.dir.format(name=config.name, seed=config.seed))


def check_run_folder(folder: Path) -> None:
    """Refuse, before any model is loaded, a folder that a new run cannot be written into.

    Raises:
        ConfigError: there is a run in it already, which is never overwritten, or nothing can be written there.
    """
    if os.path.exists(folder / CONFIG):  # not Path.exists, which raises where a folder above may not be entered
        raise ConfigError(
            f"{folder} holds a run already: continue it with --resume {folder}, or delete it, or choose another folder "
            "with run.dir=..."
        )
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing can be written or made.

    Raises:
        ConfigError: naming what is in the way.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be a run folder: {there} is a file; choose another one with run.dir=...")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: {there} is read-only; choose another one with run.dir=...")


def create_run_folder(folder: Path, config_text: str) -> Path:
    """Make a run folder and write the configuration into it.

    Raises:
        ConfigError: as `check_run_folder`.
    """
    check_run_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / CONFIG, config_text)
    return folder


def refuse_edited(folder: Path, config: TrainConfig) -> None:
    """Refuse to resume a run whose configuration was edited since its last checkpoint.

    Raises:
        ConfigError: naming every key that differs and must not.
        RunError: the last checkpoint is damaged.
    """
    if recipe := Checkpoints(folder).recipe():
        try:
            trained = TrainConfig.model_validate(rename_keys(recipe)[0], strict=False)
        except ValidationError as err:
            first = err.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{folder} was trained with another version of mmrl ({key}: {first['msg']}): "
                              "go on with that version, or start a new run") from None  # fmt: skip
        refuse_edits_on_resume(trained, config, str(folder / CONFIG))
