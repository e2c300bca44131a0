"""Run folders: create, open, check and lock the folder of a training run."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrl.atomic_io import replace_text
from mmrl.config.loading.load import load_config
from mmrl.config.loading.overrides import check_resume_config
from mmrl.config.loading.renamed import rename_keys
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError, RunError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.trackers import read_metrics

CONFIG = "config.yaml"
LOCK = ".lock"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run folder and its configuration."""

    folder: Path
    config: TrainConfig

    def metrics(self, kind: str = "train") -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl of one kind, `train` or `evaluation`."""
        return [row for row in read_metrics(self.folder) if row["kind"] == kind]

    def checkpoint(self, which: str = "last") -> Path:
        """Return the folder of the last or best checkpoint."""
        return Checkpoints(self.folder).path(which)

    def step(self) -> int:
        """Return the number of iterations done at the last checkpoint."""
        return int(self.checkpoint().name.removeprefix("step-"))


def load_run(folder: Path) -> Run:
    """Open a run folder.

    Raises:
        ConfigError: the folder has no configuration.
    """
    config = Path(folder) / CONFIG
    if not config.is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no {CONFIG}")
    return Run(Path(folder), load_config(str(config)))


def run_folder(config: TrainConfig) -> Path:
    """Return the folder that a run of this configuration is written into."""
    return Path(config.run.dir.format(name=config.name, seed=config.seed))


def check_run_folder(folder: Path) -> None:
    """Raise, before any model is loaded, unless a new run can be written into the folder.

    Raises:
        ConfigError: it contains a run that has trained, which is never overwritten, or it cannot be written.
    """
    # not Path.exists, which raises where a folder above may not be entered
    if os.path.exists(folder / CONFIG) and has_trained(folder):
        raise ConfigError(
            f"{folder} contains a run already: continue it with --resume {folder}, or delete it, or choose another "
            "folder with run.dir=..."
        )
    check_writable(folder)


def has_trained(folder: Path) -> bool:
    """Return whether the run of a folder has finished an iteration or a checkpoint."""
    trained = any(row["kind"] == "train" for row in read_metrics(folder))
    return trained or Checkpoints(folder).any_finished()


def check_writable(folder: Path) -> None:
    """Raise unless files can be written into the folder, or the folder can be created.

    Raises:
        ConfigError: a file is in the way, or a folder is read-only; the message names it.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be a run folder: {there} is a file; choose another one with run.dir=...")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: {there} is read-only; choose another one with run.dir=...")


def create_run_folder(folder: Path, config_text: str) -> Path:
    """Create a run folder and write the configuration into it.

    Raises:
        ConfigError: as `check_run_folder`.
    """
    check_run_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / CONFIG, config_text, durable=True)
    return folder


def check_unedited(folder: Path, config: TrainConfig) -> None:
    """Raise unless the configuration of a run is the one of its last checkpoint.

    Raises:
        ConfigError: keys differ that may not change on resume; the message names them.
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
        check_resume_config(trained, config, str(folder / CONFIG))


@contextmanager
def only_writer(run: Path) -> Iterator[None]:
    """Lock a run folder while open, so that one process at a time writes into it. Create the folder if needed.

    The operating system releases the lock when the process and its forks end, even if they are killed. Windows has
    none.

    Raises:
        RunError: another process has the lock.
    """
    run.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # it has no flock
        yield
        return
    import fcntl

    with (run / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(
                f"{run} is being written by another process ({file.read().strip()}): wait for it, end it, or train "
                "into another folder with run.dir=..."
            ) from None
        except OSError as err:
            if err.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            logger.warning("%s cannot be locked (%s): start no second process on it", run, err.strerror)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        yield
