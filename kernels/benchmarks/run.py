"""Measure all ops against their baselines, in turns: ratios, peak memory, and whether the gates are reached.

    python kernels/benchmarks/run.py                    # on a GPU where there is one, else on one thread of the CPU
    python kernels/benchmarks/run.py --only linear      # shared_prompt or linear
    python kernels/benchmarks/run.py --out docs/results # kernels-cpu.md and .json, or kernels-cuda
    python kernels/benchmarks/run.py --smoke            # seconds: does it still run?

Each op is measured in a separate process, so that none meets the memory that another left. Fails where a gate is
missed. It needs mmrl_kernels and torch; Liger's lines are left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import torch
from lines import Line, table

OPS = ("linear", "shared_prompt")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=OPS, default=OPS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="a folder for the table and the numbers")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    lines: list[Line] = []
    failed: list[str] = []
    print("\n".join(table([])), flush=True)
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        for name in args.only:
            found, error = fresh.submit(measured, name, args.device, args.smoke).result()
            lines += found
            failed += [f"{name} stopped: {error}"] if error else []
            if args.out:
                write(args.out, args.device, lines)
    missed = [f"{line.op}, {line.case}, {line.candidate}: {line.gate}" for line in lines if line.passed is False]
    if failed:
        raise SystemExit("; ".join(failed))
    if missed and not args.smoke:
        raise SystemExit("missed: " + "; ".join(missed))


def measured(op: str, device: str, smoke: bool) -> tuple[list[Line], str | None]:
    """The lines of an op, printed as they are measured, and the error that stopped it: the others are kept."""
    torch.set_num_threads(1)
    found: list[Line] = []
    try:
        for line in import_module(op).lines(device, smoke):
            found.append(line)
            print(table([line])[-1], flush=True)
    except Exception:
        return found, traceback.format_exc(limit=-3)
    return found, None


def write(folder: Path, device: str, lines: list[Line]) -> None:
    """The table, and all numbers with the versions that they were measured with."""
    folder.mkdir(parents=True, exist_ok=True)
    where = machine(device)
    page = [
        f"# Kernels on {'an NVIDIA GPU' if device == 'cuda' else 'a CPU'}",
        "",
        "<!-- Written by kernels/benchmarks/run.py. -->",
        "",
        f"{where}. Candidate and baseline are timed alternately, in one process per op; ratios are medians over",
        "rounds of the baseline's time divided by the candidate's. Memory is the peak of a call minus the memory used",
        "before it.",
        "",
        "```bash",
        "python kernels/benchmarks/run.py --out docs/results",
        "```",
        "",
        *table(lines),
    ]
    (folder / f"kernels-{device}.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    numbers = {"machine": where, "lines": [asdict(line) for line in lines]}
    (folder / f"kernels-{device}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def machine(device: str) -> str:
    """What the numbers belong to."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"One thread of an {platform.machine()} CPU"
    return f"{name}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
