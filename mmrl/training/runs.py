"""Run folders: made once, read by everyone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.config.load import load_config
from mmrl.config.section import ConfigError
from mmrl.config.train import TrainConfig
from mmrl.training.checkpoints import Checkpoints
from mmrl.training.trackers import METRICS

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


def create_run_folder(folder: Path, config_text: str) -> Path:
    """Make a run folder and write the configuration into it.

    Raises:
        ConfigError: there is a run in it already, which is never overwritten.
    """
    if (folder / CONFIG).exists():
        started = bool(Checkpoints(folder).index())
        remedy = f"continue it with --resume {folder}, or delete it" if started else "delete it (it has no checkpoint)"
        raise ConfigError(f"{folder} holds a run already: {remedy}, or choose another folder with run.dir=...")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(config_text, encoding="utf-8")
    return folder
