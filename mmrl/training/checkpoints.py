"""Checkpoints: written under a temporary name and renamed, so that one is whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.policy import Policy
from mmrl.training.errors import RunError

INDEX = "index.json"


@dataclass(frozen=True)
class TrainerState:
    """All that a run needs to go on exactly, beside the policy's own files."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # parameters, optimizer, objective, average
    values: dict[str, Any]  # JSON-like


class Checkpoints:
    """The folder `checkpoints/` of a run. The best and the last checkpoint are kept."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "checkpoints"

    def save(self, policy: Policy, state: TrainerState, score: float | None) -> Path:
        """Write a checkpoint; `score` decides which is the best (None: it cannot be)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{state.step}"
        target, fresh = self._folder / name, self._folder / f".{name}.tmp"
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "trainer").mkdir(parents=True)
        policy.save(fresh)
        for part, tensors in state.tensors.items():
            save_file({k: t.contiguous() for k, t in tensors.items()}, fresh / "trainer" / f"{part}.safetensors")
        (fresh / "trainer" / "state.json").write_text(json.dumps({"step": state.step, **state.values}))
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
        index = self.index() | {"last": name}
        if score is not None and score >= index.get("best_score", float("-inf")):
            index |= {"best": name, "best_score": score}
        self._write_index(index)
        self._drop_all_but({index["last"], index.get("best")})
        return target

    def index(self) -> dict[str, Any]:
        """`last`, `best` and `best_score`, as far as there are any."""
        path = self._folder / INDEX
        return json.loads(path.read_text()) if path.exists() else {}

    def path(self, which: str = "last") -> Path:
        """The folder of the last or best checkpoint.

        Raises:
            RunError: there is none.
        """
        index = self.index()
        if which not in index:
            raise RunError(f"{self._folder} has no {which} checkpoint yet")
        return self._folder / index[which]

    def load_state(self) -> TrainerState:
        """The trainer's state in the last checkpoint."""
        folder = self.path() / "trainer"
        try:
            values = json.loads((folder / "state.json").read_text())
            tensors = {file.stem: load_file(file) for file in sorted(folder.glob("*.safetensors"))}
        except (OSError, ValueError, SafetensorError) as why:
            raise RunError(f"{folder} cannot be read ({why}): delete that checkpoint or start a new run") from why
        return TrainerState(values.pop("step"), tensors, values)

    def _write_index(self, index: Mapping[str, Any]) -> None:
        fresh = self._folder / f".{INDEX}.tmp"
        fresh.write_text(json.dumps(index, indent=2))
        fresh.replace(self._folder / INDEX)

    def _drop_all_but(self, kept: set[str | None]) -> None:
        for folder in self._folder.glob("step-*"):
            if folder.name not in kept:
                shutil.rmtree(folder)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors, `<parameter number>.<name>`."""
    states = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, state in states.items()
        for name, value in state.items()
        if value is not None
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@torch.no_grad()
def load_parameters(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Copy saved values into live parameters, which must be the same ones.

    Raises:
        RunError: names differ: the configuration was changed.
    """
    if parameters.keys() != tensors.keys():
        differing = sorted(parameters.keys() ^ tensors.keys())[:3]
        raise RunError(f"the checkpoint holds other parameters than the policy trains, such as {', '.join(differing)}")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
