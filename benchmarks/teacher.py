"""Measure what a frozen teacher of equal size adds to an iteration.

    python benchmarks/teacher.py            # fails where an iteration takes over 1.35 times as long
    python benchmarks/teacher.py --smoke    # seconds: does it still run?

The embedded model of calculations answers 16 prompts, 8 times each. `grpo` is without a teacher; `distill` draws all
answers to another model of its size, which scores them before the update; `mix` has both losses, each with a replay.
The learning rate is so small that all runs sample the same answers. Medians of the processor time of iterations, in
runs that alternate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from mmrl.config import load_config
from mmrl.training.run.trackers import read_metrics
from mmrl.workflows.train import train

BOUND = 1.35
TEACHER = "models={teacher: {model: 'shapeworld:sums'}}"
ARMS = {
    "grpo": (),
    "distill": (TEACHER, "algorithm={name: distill}"),
    "mix": (TEACHER, "algorithm={name: mix, terms: [{name: grpo}, {name: distill}]}"),
}
BOUNDED = "distill"


def seconds(arm: str, iterations: int, number: int) -> list[float]:
    """Return the processor time of each iteration of a run, without the first."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["optimizer.lr=1e-12", "evaluation={}", "data.validation=null", f"training.iterations={iterations + 1}"]
        run = [f"seed={number}", f"run.dir={folder}/run", "run.display=quiet"]
        rows = read_metrics(train(load_config("shapes-reasoning", [*words, *run, *ARMS[arm]])))
    return [row["seconds/cpu"] for row in rows if row["kind"] == "train"][1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="short, and no bound")
    args = parser.parse_args()
    iterations, repeats = (2, 1) if args.smoke else (10, 3)
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(repeats):
        for arm in ARMS:
            found[arm] += seconds(arm, iterations, number)
    medians = {arm: statistics.median(values) for arm, values in found.items()}
    print("| | CPU-seconds of an iteration | / grpo |\n|-|-|-|")
    for arm, median in medians.items():
        print(f"| {arm} | {median:.2f} | {median / medians['grpo']:.2f} |")
    ratio = medians[BOUNDED] / medians["grpo"]
    if not args.smoke and ratio > BOUND:
        raise SystemExit(f"an iteration with a teacher takes {ratio:.2f} times one without, over {BOUND}")


if __name__ == "__main__":
    main()
