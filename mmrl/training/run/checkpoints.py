"""Checkpoints: written under a temporary name, synced to disk, and renamed, so that each is complete or absent.

checkpoints/step-N/                 the policy's files
checkpoints/step-N/models/NAME/     the files of another model that is trained
checkpoints/step-N/trainer/         parameters, optimizer and so on; state.json lists every file with its size
checkpoints/index.json              names of the last and the best checkpoint

The folders are authoritative: an index.json that is missing, damaged or outdated is rebuilt from them.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.atomic_io import replace_text, sync_folder, sync_tree
from mmrl.distributed.tensor_parts import cut, fill, is_divided, joined, on_main_whole
from mmrl.errors import RunError
from mmrl.policy import Policy

INDEX = "index.json"
STATE = "trainer/state.json"

logger = logging.getLogger(__name__)


class SavedModel(Protocol):
    """A model that writes its trained parameters."""

    def save(self, folder: Path) -> None:
        """Write the trained parameters."""


@dataclass(frozen=True)
class TrainerState:
    """The state that a run needs, beside the policy's own files, to continue exactly."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # parameters, optimizer, objective, average
    values: dict[str, Any]  # JSON-like


class Checkpoints:
    """The folder `checkpoints/` of a run. The best and the last two checkpoints are kept.

    `keep_every` keeps those whose step is a multiple of it, too; None: no others.
    """

    def __init__(self, run: Path, keep_every: int | None = None) -> None:
        self._run = run
        self._folder = run / "checkpoints"
        self._keep_every = keep_every

    def save(
        self, policy: Policy, state: TrainerState, score: float | None, others: Mapping[str, SavedModel] | None = None
    ) -> Path:
        """Write a checkpoint and return its folder. The highest `score` is the best; None cannot be the best.

        `others` are the models beside the policy that are trained, by name.

        A complete checkpoint of this step is not written again: a run has one state at a step, and replacing it would
        leave a moment without any.

        Raises:
            RunError: the checkpoint cannot be written; earlier checkpoints are unchanged.
        """
        score = score if score is not None and math.isfinite(score) else None
        index = self.index()
        target = self._folder / f"step-{state.step}"
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True)
                sync_folder(self._run)
            if damage(target) is not None:
                self._keep(index.get("best"), index.get("last"))  # first, to free space
                self._write(
                    target,
                    {"": policy, **{f"models/{name}": each for name, each in (others or {}).items()}},
                    state,
                    score,
                )
            index = index | {"last": target.name}
            if score is not None and score >= index.get("best_score", -math.inf):
                index |= {"best": target.name, "best_score": score}
            self._write_index(index)
        except (OSError, SafetensorError) as err:
            kept = f"{index['last']} is unchanged" if "last" in index else "there is none yet"
            raise RunError(
                f"the checkpoint {target} cannot be written ({_reason(err)}); {kept}. Fix that, then go on with: "
                f"mmrl train --resume {self._run}"
            ) from err
        return target

    def any_finished(self) -> bool:
        """Return True if a checkpoint was ever finished."""
        return bool(self._steps()) or (self._folder / INDEX).exists()

    def repair(self) -> None:
        """Rebuild index.json from the folders if needed, and delete what a killed process left."""
        self._write_index(self.index())

    def index(self) -> dict[str, Any]:
        """Return `last`, `best` and `best_score`, those that exist."""
        steps = self._steps()
        try:
            index = dict(json.loads((self._folder / INDEX).read_text(encoding="utf-8")))
            listed = {index["last"], index.get("best", index["last"])}
            if index["last"] == f"step-{steps[-1]}" and listed <= {f"step-{step}" for step in steps}:
                return index
            problem = "does not list the folders that exist"
        except FileNotFoundError:
            problem = "is missing"
        except (ValueError, TypeError, KeyError, IndexError):
            problem = "is damaged"
        found = self._index_of_folders(steps)
        if found:
            logger.warning("%s %s: by the folders, the last is %s", self._folder / INDEX, problem, found["last"])
        return found

    def path(self, which: str = "last") -> Path:
        """Return the folder of the last or best checkpoint.

        Raises:
            RunError: there is none, or it is incomplete.
        """
        index = self.index()
        if which not in index and not index and self.any_finished():
            raise RunError(f"{self._folder} lacks the checkpoints that its {INDEX} lists: restore them")
        if which not in index:
            raise RunError(f"{self._folder} has no {which} checkpoint yet")
        folder = self._folder / index[which]
        if (problem := damage(folder)) is not None:
            raise self._damaged(folder, problem)
        return folder

    def load_state(self) -> TrainerState:
        """Return the trainer's state in the last checkpoint.

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
        """Return the configuration of the last checkpoint; empty if there is none, or it holds none.

        Raises:
            RunError: as `path`.
        """
        if not self.any_finished():
            return {}
        return dict(json.loads((self.path() / STATE).read_text(encoding="utf-8")).get("recipe", {}))

    def _write(self, target: Path, models: Mapping[str, SavedModel], state: TrainerState, score: float | None) -> None:
        """Write a checkpoint of models, each in its folder inside `target`."""
        fresh = target.with_name(f".{target.name}.tmp")
        (fresh / "trainer").mkdir(parents=True)
        try:
            for place, model in models.items():
                (fresh / place).mkdir(parents=True, exist_ok=True)
                model.save(fresh / place)
            self._write_state(fresh, state, score)
            sync_tree(fresh)
        except (OSError, SafetensorError):
            shutil.rmtree(fresh, ignore_errors=True)  # frees space on a full disk
            raise
        if target.exists():
            shutil.rmtree(target)  # incomplete
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

    def _write_index(self, index: Mapping[str, Any]) -> None:
        """Write the index, then delete checkpoints that need not be kept."""
        path, text = self._folder / INDEX, json.dumps(index, indent=2, allow_nan=False)
        if not path.exists() or path.read_bytes() != text.encode():
            replace_text(path, text, durable=True)
        self._keep(index.get("best"), *(f"step-{step}" for step in self._steps()[-2:]))

    def _steps(self) -> list[int]:
        """Return the steps of all checkpoints, complete or not, sorted."""
        names = [folder.name.removeprefix("step-") for folder in self._folder.glob("step-*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def _index_of_folders(self, steps: list[int]) -> dict[str, Any]:
        """Return the index that the folders imply. The last may be damaged, so that it is noticed; the best may not."""
        index: dict[str, Any] = {"last": f"step-{steps[-1]}"} if steps else {}
        for step in steps:
            folder = self._folder / f"step-{step}"
            if damage(folder) is None:
                score = json.loads((folder / STATE).read_text(encoding="utf-8")).get("score")
                if score is not None and score >= index.get("best_score", -math.inf):
                    index |= {"best": folder.name, "best_score": score}
        return index

    def _keep(self, *names: str | None) -> None:
        """Delete other checkpoints and what killed processes left. Folders are renamed before they are deleted."""
        lasting = {f"step-{step}" for step in self._steps() if self._keep_every and step % self._keep_every == 0}
        for folder in self._folder.glob("step-*"):
            if folder.name not in lasting.union(names):
                folder.rename(folder.with_name(f".{folder.name}.tmp"))
        for folder in self._folder.glob(".step-*.tmp"):
            shutil.rmtree(folder)

    def _damaged(self, folder: Path, problem: str) -> RunError:
        complete = [
            s for s in self._steps() if f"step-{s}" != folder.name and damage(self._folder / f"step-{s}") is None
        ]
        if not complete:
            return RunError(f"{problem}, and no other checkpoint is complete: restore that file, or start a new run")
        return RunError(
            f"{problem}. The checkpoint of iteration {complete[-1]} is complete; to go on from it: "
            f"rm -r {folder} && mmrl train --resume {self._run}"
        )


def damage(checkpoint: Path) -> str | None:
    """Return the first missing or damaged file of a checkpoint, judged by sizes, as a message; None if complete."""
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


def _reason(err: Exception) -> str:
    return str(err).removeprefix("Error while serializing: ")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as flat tensors, `<parameter number>.<name>`.

    Of a state that is divided over processes, process 0 gets whole tensors and the others get nothing.
    """
    states = optimizer.state_dict()["state"]
    return on_main_whole(
        {
            f"{number}.{name}": torch.as_tensor(value)
            for number, state in states.items()
            for name, value in state.items()
            if value is not None
        }
    )


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_tensors` returned; each process takes its part of a divided state."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        like = parameters[int(number)]
        if is_divided(like) and value.shape == like.shape:
            value = joined(cut(value, like).to(like.device, copy=True), like)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@torch.no_grad()
def load_parameters(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Copy saved values into the parameters of the same names; each process takes its part of divided ones.

    Raises:
        RunError: names differ: the configuration was changed.
    """
    if parameters.keys() != tensors.keys():
        differing = sorted(parameters.keys() ^ tensors.keys())[:3]
        raise RunError(f"the checkpoint has other parameters than the policy trains, such as {', '.join(differing)}")
    for name, parameter in parameters.items():
        fill(parameter, tensors[name])
