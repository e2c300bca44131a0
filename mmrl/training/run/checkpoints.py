"""Checkpoints: written under a temporary name, put on the disk, and renamed, so that one is whole or not there.

checkpoints/step-N/                 the policy's files
checkpoints/step-N/trainer/         parameters, optimizer and so on; state.json lists every file with its size
checkpoints/index.json              which of them is the last, which the best

The folders are what counts. Where index.json is missing, damaged or behind them, it is made up from them.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.atomic_io import replace_text, sync_folder, sync_tree
from mmrl.errors import RunError
from mmrl.policy import Policy

INDEX = "index.json"
STATE = "trainer/state.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerState:
    """All that a run needs to go on exactly, beside the policy's own files."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # parameters, optimizer, objective, average
    values: dict[str, Any]  # JSON-like


class Checkpoints:
    """The folder `checkpoints/` of a run. The best, the last and the one before are kept."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._folder = run / "checkpoints"

    def save(self, policy: Policy, state: TrainerState, score: float | None) -> Path:
        """Write a checkpoint; `score` decides which is the best (None: it cannot be).

        A step that is there and whole stays as it is: a run has one state at a step, and replacing it would leave a
        moment without.

        Raises:
            RunError: it cannot be written; what was there is there still.
        """
        score = score if score is not None and math.isfinite(score) else None
        index = self.index()
        target = self._folder / f"step-{state.step}"
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True)
                sync_folder(self._run)
            if damage(target) is not None:
                self._keep(index.get("best"), index.get("last"))  # first, to have room
                self._write(target, policy, state, score)
            index = index | {"last": target.name}
            if score is not None and score >= index.get("best_score", -math.inf):
                index |= {"best": target.name, "best_score": score}
            self._settle(index)
        except (OSError, SafetensorError) as err:
            kept = f"{index['last']} is there still" if "last" in index else "there is none yet"
            raise RunError(
                f"the checkpoint {target} cannot be written ({_reason(err)}); {kept}. When that is mended, go on with: "
                f"mmrl train --resume {self._run}"
            ) from err
        return target

    def begun(self) -> bool:
        """Whether any checkpoint was ever finished."""
        return bool(self._steps()) or (self._folder / INDEX).exists()

    def mend(self) -> None:
        """Make index.json agree with the folders, and clear away what a killed process left."""
        self._settle(self.index())

    def index(self) -> dict[str, Any]:
        """`last`, `best` and `best_score`, as far as there are any."""
        steps = self._steps()
        try:
            index = dict(json.loads((self._folder / INDEX).read_text(encoding="utf-8")))
            listed = {index["last"], index.get("best", index["last"])}
            if index["last"] == f"step-{steps[-1]}" and listed <= {f"step-{step}" for step in steps}:
                return index
            problem = "does not list the folders that are there"
        except FileNotFoundError:
            problem = "is missing"
        except (ValueError, TypeError, KeyError, IndexError):
            problem = "is damaged"
        found = self._index_of_folders(steps)
        if found:
            logger.warning("%s %s: by the folders, the last is %s", self._folder / INDEX, problem, found["last"])
        return found

    def path(self, which: str = "last") -> Path:
        """The folder of the last or best checkpoint.

        Raises:
            RunError: there is none, or it is not whole.
        """
        index = self.index()
        if which not in index and not index and self.begun():
            raise RunError(f"{self._folder} has lost the checkpoints that its {INDEX} lists: put them back")
        if which not in index:
            raise RunError(f"{self._folder} has no {which} checkpoint yet")
        folder = self._folder / index[which]
        if (problem := damage(folder)) is not None:
            raise self._damaged(folder, problem)
        return folder

    def load_state(self) -> TrainerState:
        """The trainer's state in the last checkpoint.

        Raises:
            RunError: as `path`.
        """
        folder = self.path()
        try:
            values = json.loads((folder / STATE).read_text(encoding="utf-8"))
            tensors = {file.stem: load_file(file) for file in sorted((folder / "trainer").glob("*.safetensors"))}
        except (OSError, ValueError, SafetensorError) as err:
            raise self._damaged(folder, f"{folder / 'trainer'} cannot be read ({_reason(err)})") from err
        for ours in ("files", "score"):
            values.pop(ours, None)
        return TrainerState(values.pop("step"), tensors, values)

    def recipe(self) -> dict[str, Any]:
        """The configuration that the last checkpoint was trained with; empty if there is none, or it does not say.

        Raises:
            RunError: as `path`.
        """
        if not self.begun():
            return {}
        return dict(json.loads((self.path() / STATE).read_text(encoding="utf-8")).get("recipe", {}))

    def _write(self, target: Path, policy: Policy, state: TrainerState, score: float | None) -> None:
        fresh = target.with_name(f".{target.name}.tmp")
        (fresh / "trainer").mkdir(parents=True)
        try:
            policy.save(fresh)
            self._write_state(fresh, state, score)
            sync_tree(fresh)
        except (OSError, SafetensorError):
            shutil.rmtree(fresh, ignore_errors=True)  # a full disk is in need of room
            raise
        if target.exists():
            shutil.rmtree(target)  # not whole
        fresh.rename(target)
        sync_folder(self._folder)

    def _write_state(self, fresh: Path, state: TrainerState, score: float | None) -> None:
        for part, tensors in state.tensors.items():
            save_file({k: t.contiguous() for k, t in tensors.items()}, fresh / "trainer" / f"{part}.safetensors")
        files = {
            str(f.relative_to(fresh).as_posix()): f.stat().st_size for f in sorted(fresh.rglob("*")) if f.is_file()
        }
        content = {"step": state.step, "score": score, "files": files, **state.values}
        (fresh / STATE).write_text(json.dumps(content, allow_nan=False), encoding="utf-8")

    def _settle(self, index: Mapping[str, Any]) -> None:
        """Write the index, then delete what need not be kept."""
        path, text = self._folder / INDEX, json.dumps(index, indent=2, allow_nan=False)
        if not path.exists() or path.read_bytes() != text.encode():
            replace_text(path, text)
        self._keep(index.get("best"), *(f"step-{step}" for step in self._steps()[-2:]))

    def _steps(self) -> list[int]:
        """Of all checkpoints, whole or not, sorted."""
        names = [folder.name.removeprefix("step-") for folder in self._folder.glob("step-*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def _index_of_folders(self, steps: list[int]) -> dict[str, Any]:
        """As index.json would be: damaged folders can be the last, so that nobody overlooks them, never the best."""
        index: dict[str, Any] = {"last": f"step-{steps[-1]}"} if steps else {}
        for step in steps:
            folder = self._folder / f"step-{step}"
            if damage(folder) is None:
                score = json.loads((folder / STATE).read_text(encoding="utf-8")).get("score")
                if score is not None and score >= index.get("best_score", -math.inf):
                    index |= {"best": folder.name, "best_score": score}
        return index

    def _keep(self, *names: str | None) -> None:
        """Delete all other checkpoints, and what killed processes left; what is half deleted has no name of ours."""
        for folder in self._folder.glob("step-*"):
            if folder.name not in names:
                folder.rename(folder.with_name(f".{folder.name}.tmp"))
        for folder in self._folder.glob(".step-*.tmp"):
            shutil.rmtree(folder)

    def _damaged(self, folder: Path, problem: str) -> RunError:
        whole = [s for s in self._steps() if f"step-{s}" != folder.name and damage(self._folder / f"step-{s}") is None]
        if not whole:
            return RunError(f"{problem}, and no other checkpoint is whole: restore that file, or start a new run")
        return RunError(
            f"{problem}. The checkpoint of iteration {whole[-1]} is whole; to go on from it: "
            f"rm -r {folder} && mmrl train --resume {self._run}"
        )


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's files, going by their sizes; None if it is whole."""
    path = checkpoint / STATE
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return f"{path} is missing"
    except (ValueError, KeyError):
        return f"{path} is cut short"
    for name, size in files.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{file} is missing"
        if (came := file.stat().st_size) != size:
            return f"{file} is damaged: it has {came} of {size} bytes"
    return None


def _reason(why: Exception) -> str:
    return str(why).removeprefix("Error while serializing: ")


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
