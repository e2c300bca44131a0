"""Runs of `mmrl train` with one or several processes, timed and compared: for a benchmark and for studies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from mmrl.errors import EvaluationError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.trackers import read_metrics

BLIND = ("data.validation=null", "data.heldout=null", "evaluation={}", "run.display=plain")
SETTINGS = {
    "quickstart": ("data.groups=4", "data.group_size=8", "data.micro_batch=8"),
    "flow-grpo": (
        "data.groups=4",
        "data.group_size=8",
        "data.micro_batch=8",
        "sampling.window={}",
        "algorithm.kl.coef=0.01",
    ),
}
"""Sizes that two, three or four processes can share."""
STEP = re.compile(r"step +(\d+)/")


@dataclass(frozen=True)
class ProcessRun:
    """A finished run."""

    parameters: Mapping[str, Tensor]
    metrics: Sequence[Mapping[str, Any]]  # lines of metrics.jsonl
    seconds: float  # of a clock, of one iteration: the median without the first one

    def difference(self, other: ProcessRun) -> float:
        """Return the largest difference of a trained parameter."""
        pairs = [(values, other.parameters[name]) for name, values in self.parameters.items()]
        return max(float((one - two).abs().max()) for one, two in pairs)

    def mean(self, name: str, kind: str = "train") -> float:
        """Return the mean of a metric over the iterations."""
        values = [row[name] for row in self.metrics if row["kind"] == kind and name in row]
        return float(sum(values) / len(values))


def train(processes: int, recipe: str, *overrides: str) -> ProcessRun:
    """Train a recipe without evaluations, each process with one thread.

    Raises:
        EvaluationError: the run failed; the message has the last lines that it printed.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with TemporaryDirectory() as folder:
        words = [recipe, *BLIND, *overrides, f"run.dir={folder}/run"]
        command = [sys.executable, *(launcher if processes > 1 else []), "-m", "mmrl", "train", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        lines, times = [], []
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        ) as run:
            assert run.stderr is not None
            for line in run.stderr:
                lines.append(line)
                if STEP.match(line):
                    times.append(time.perf_counter())
        if run.returncode:
            raise EvaluationError(f"{' '.join(words)} with {processes} processes failed:\n{''.join(lines[-20:])}")
        path = Path(folder) / "run"
        parameters = load_file(Checkpoints(path).path() / "trainer" / "parameters.safetensors")
        gaps = [after - before for before, after in pairwise(times)]
        return ProcessRun(parameters, read_metrics(path), median(gaps))


def layout_cost(
    seed: int, processes: int = 1, place: str = "auto", recipe: str = "flow-grpo", steps: int = 6, iterations: int = 4
) -> dict[str, list[float]]:
    """Train a recipe with several processes and with one, in turns, and compare.

    Returns:
        `difference`: the largest difference of a parameter. `speedup`: the time of an iteration with one process over
        that with several. `exchanged_mib`: the tensors that a process gathers or adds up in an iteration.
    """
    overrides = [
        *SETTINGS[recipe],
        f"seed={seed}",
        f"sampling.steps={steps}",
        f"training.iterations={iterations}",
    ]
    alone = train(1, recipe, *overrides)
    together = train(processes, recipe, *overrides, f"run.place={place}")
    return {
        "difference": [alone.difference(together)],
        "speedup": [alone.seconds / together.seconds],
        "exchanged_mib": [together.mean("exchanged_mib") if processes > 1 else 0.0],
    }
