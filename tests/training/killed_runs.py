"""Runs of several models that are killed and resumed, beside one that is left alone."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.training.fork_server import Child, ForkServer


@dataclass(frozen=True)
class KilledRun:
    """A recipe with the keys that change it, trained into the folder `run` of a given one."""

    recipe: str
    words: Sequence[str]

    def start(self, server: ForkServer, folder: Path, **orders: Any) -> Child:
        """Start training; `orders` say when the process is sent a signal."""
        folder.mkdir(parents=True, exist_ok=True)
        return server.start(folder, "train", self.recipe, *self.words, **orders)

    def finish(self, server: ForkServer, folder: Path) -> None:
        """Resume to the end, or begin again where nothing was written yet."""
        begun = (folder / "run/config.yaml").exists()
        child = server.start(folder, "train", *(["--resume", "run"] if begun else [self.recipe, *self.words]))
        assert child.wait() == 0, child.output_text()

    def undisturbed(self, server: ForkServer, folder: Path) -> tuple[Path, float]:
        """Train to the end; return the run's folder and the seconds that it took."""
        began = time.monotonic()
        child = self.start(server, folder)
        assert child.wait() == 0, child.output_text()
        return folder / "run", time.monotonic() - began

    def kill(self, server: ForkServer, folder: Path, draw: int, after: int, steps: int, seconds: float) -> None:
        """Train, and kill the process at a moment that `draw` decides, once `after` of `steps` iterations are done."""
        child = self.start(server, folder)
        if after:
            child.await_text(f"step    {after}/{steps}")
        time.sleep(seconds * random.Random(draw).random() / (steps if after else 2))
        child.send(signal.SIGKILL)
        child.wait()
