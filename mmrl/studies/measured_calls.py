"""Values of the calls of an experiment on disk, so that a study that was interrupted goes on after the last one.

    measured/<digest>.json   the function, its arguments and seed, and the values that it returned

The digest is that of the call, of the suite's code, shipped models and recipes and the function's own file, to the
byte, and of the versions of libraries: after a change of any of them, a call is made anew.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmrl.atomic_io import replace_text
from mmrl.studies.arm_cache import data_files, library_versions, source_files

Experiment = Callable[..., Mapping[str, Sequence[float]]]
"""From a seed and the arguments of an arm to the values of each metric: as many for every arm and seed."""


@dataclass(frozen=True)
class MeasuredCalls:
    """The finished calls of experiments in a folder."""

    folder: Path

    def values(
        self, function: Experiment, seed: int, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, list[float]], bool]:
        """Return what the function returns, and True if an earlier call of it is read in place of a new one."""
        own = inspect.getsourcefile(function)
        call = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "seed": seed,
            "arguments": dict(arguments),
            "libraries": library_versions(),
            "code": [_suite_digest(), hashlib.sha256(Path(own).read_bytes() if own else b"").hexdigest()],
        }
        text = json.dumps(call, sort_keys=True)
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        if path.is_file():
            found: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))["values"]
            return found, True
        returned = function(seed, **arguments)
        measured = {metric: [float(value) for value in values] for metric, values in returned.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(call | {"values": measured}))
        return measured, False


@cache
def _suite_digest() -> str:
    """Return a digest of the suite's files that can change a number: code, shipped models, and recipes."""
    digest = hashlib.sha256()
    for name, path in (*source_files(), *data_files()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()
