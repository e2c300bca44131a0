"""Versions of a policy's weights: their names, and the folders that servers read them from.

A name is never used for other weights: it holds a random part for each run, the number of updates, and a digest of the
values. The digest tells apart what the number does not: the average that is evaluated, and the reference model.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

PREFIX = "mmrl-"
"""The beginning of the names of all versions of all runs."""
KEPT = 2
"""Folders that are kept: a server that was restarted may still read the version before the last."""


def weights_digest(model: nn.Module) -> str:
    """Return 12 hexadecimal digits of the values of a model's weights: of its adapters, where it has some."""
    named = list(model.named_parameters())
    adapters = [(name, parameter) for name, parameter in named if ".lora_" in name]
    digest = blake2b(digest_size=6)
    for name, parameter in adapters or named:
        values = parameter.detach().double().flatten()
        places = torch.arange(1, len(values) + 1, device=values.device, dtype=torch.float64)
        sums = torch.stack([values.sum(), values.square().sum(), (values * places.rsqrt()).sum()])
        digest.update(name.encode())
        digest.update(sums.cpu().numpy().tobytes())
    return digest.hexdigest()


def without_adapters(model: nn.Module) -> bool:
    """Return True if the model has adapters that are switched off now: it computes as its base model."""
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    return bool(layers) and all(layer.disable_adapters for layer in layers)


class VersionFolders:
    """The folders of the versions of one run, of which the last ones are kept."""

    def __init__(self, folder: Path, on_server: str | None) -> None:
        """`on_server` is the path of `folder` where the servers run; None: the same path."""
        self._folder, self._on_server = folder, on_server
        self.run = PREFIX + secrets.token_hex(4)
        """The beginning of the names of this run."""

    def name(self, version: int, digest: str) -> str:
        """Return the name of the weights with this digest after `version` updates."""
        return f"{self.run}-{version}-{digest}"

    def path(self, name: str) -> str:
        """Return the folder of a version as the servers see it."""
        if self._on_server is not None:
            return f"{self._on_server.rstrip('/')}/{name}"
        return str((self._folder / name).absolute())

    def write(self, name: str, save: Callable[[Path], None]) -> None:
        """Write a version with `save`, unless it is there, and remove older ones. A folder is there when complete."""
        target = self._folder / name
        if not target.exists():
            unfinished = self._folder / f".{name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            save(unfinished)
            os.replace(unfinished, target)
        os.utime(target)
        own = sorted(self._folder.glob(f"{self.run}-*"), key=lambda path: path.stat().st_mtime_ns)
        for old in own[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
