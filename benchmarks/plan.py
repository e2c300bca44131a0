"""Compare the predictions of `mmrl plan` with runs of one and of two processes.

    python benchmarks/plan.py            # fails where a prediction for two processes is off by more than a quarter
    python benchmarks/plan.py --smoke    # a minute, small sizes: does it still run?

The recipes and sizes of `benchmarks/processes.py`. Each process has one thread. In each turn the prediction is made
just before the runs; the median of the ratios counts, so that other programs disturb both sides alike.
"""

from __future__ import annotations

import argparse
from statistics import median

from mmrl.cli.console import quiet_diffusers
from mmrl.config import load_config
from mmrl.planning.plan import plan_run
from mmrl_shapeworld.process_runs import train

BOUND = 0.25
RUNS = {"quickstart": ("data.micro_batch=48",), "shapes-vlm": ("data.micro_batch=64",)}
SMALL = {"quickstart": ("data.groups=2", "data.micro_batch=12"), "shapes-vlm": ("data.groups=2", "data.micro_batch=16")}
HEAD = (
    "| recipe | one process, predicted / measured | two processes, predicted / measured | two processes, seconds "
    "predicted | measured | speed-up predicted | measured |\n|-|-|-|-|-|-|-|"
)


def predicted(recipe: str, overrides: tuple[str, ...], repeats: int) -> tuple[float, float]:
    """Return the predicted seconds of an iteration on one and on two devices, with replicas."""
    with quiet_diffusers():
        one, two = plan_run(load_config(recipe, [*overrides, "evaluation={}"]), 2, repeats=repeats).forecasts
    return one.places[0].seconds.total, two.places[0].seconds.total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small, and no bound")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    print(HEAD)
    off = []
    for recipe, overrides in (SMALL if args.smoke else RUNS).items():
        length = (f"training.iterations={3 if args.smoke else args.iterations}",)
        turns = []
        for _ in range(1 if args.smoke else args.turns):
            guesses = predicted(recipe, overrides, repeats=1 if args.smoke else 8)
            turns.append((*guesses, *(train(count, recipe, *overrides, *length).seconds for count in (1, 2))))
        alone = median(one / run for one, _, run, _ in turns)
        together = median(two / run for _, two, _, run in turns)
        seconds = [f"{median(turn[place] for turn in turns):.2f}" for place in (1, 3)]
        speedups = [f"{median(turn[place] / turn[place + 1] for turn in turns):.2f}" for place in (0, 2)]
        off.append(abs(together - 1))
        print(
            f"| {recipe}, `{overrides[-1]}` | {alone:.2f} | {together:.2f} | {' | '.join([*seconds, *speedups])} |",
            flush=True,
        )
    if not args.smoke and max(off) > BOUND:
        raise SystemExit(f"a prediction for two processes is off by more than {BOUND:.0%}")


if __name__ == "__main__":
    main()
