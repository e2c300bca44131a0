"""The quickstart, cut short: started as a user does, gone on with after a crash, and compared file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmrl.data import write_samples
from mmrl_shapeworld.splits import samples
from tests.training.fork_server import Child, ForkServer

SMALL = [
    "data={path: data.jsonl, validation: data.jsonl, heldout: data.jsonl, groups: 2, group_size: 2, micro_batch: 4}",
    "sampling.steps=2",
    "algorithm.num_noise_levels=1",
    "optimizer={lr: 0.001, ema: 0.9, schedule: cosine}",
    "training={iterations: 4, save_every: 1}",
    "evaluation={every: 2, prompts: 2, rewards: [shapeworld_heldout]}",
    "run={dir: run, display: plain, pictures: 2}",
]
TIMES = ("seconds/", "memory_mib/")


def start(fork_server: ForkServer, folder: Path, *changes: str, recipe: str = "quickstart", **orders: Any) -> Child:
    """Begin in a folder; the run is `run` inside it."""
    write_data(folder)
    small = [
        change for change in SMALL if recipe == "quickstart" or not change.startswith("algorithm.num_noise_levels")
    ]
    return fork_server.start(folder, "train", recipe, *small, *changes, **orders)


def write_data(folder: Path) -> None:
    """Write the samples that `SMALL` names."""
    write_samples(samples("development")[:5], folder / "data.jsonl")


def finish(fork_server: ForkServer, folder: Path) -> str:
    """Do what a user does after a crash: resume, or start where nothing was written yet."""
    words = ["train", "--resume", "run"] if (folder / "run/config.yaml").exists() else ["train", "quickstart", *SMALL]
    child = fork_server.start(folder, *words)
    assert child.wait() == 0, child.output_text()
    return child.output_text()


def contents(run: Path) -> dict[str, object]:
    """Everything in a run folder but clocks, memory and who wrote it."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_dir() or name == ".lock":
            continue
        if path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in rows if known(row)]
        elif path.suffix == ".safetensors":
            found[name] = tensors(path)
        elif name != "report.html":  # draws the clocks too
            found[name] = path.read_bytes()
        else:
            found[name] = path.stat().st_size > 0
    return found


def known(row: dict[str, object]) -> bool:
    """Return False for a row that has clocks and memory alone."""
    return row["kind"] != "processes"


def tensors(path: Path) -> tuple[dict[str, object], bytes]:
    """Header and numbers of a safetensors file, whose metadata the library writes in a varying order."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:begin]), raw[begin:]


def assert_same(one: Path, other: Path) -> None:
    first, second = contents(one), contents(other)
    differing = [name for name in first | second if first.get(name) != second.get(name)]
    assert not differing, differing
