"""Measure the iterations a second of one and of two processes, and the share of time in which they communicate.

    python benchmarks/processes.py            # fails where two processes are less than 1.7 times as fast as one
    python benchmarks/processes.py --smoke    # a minute: does it still run, and are the numbers equal?

The quickstart and shapes-vlm with the sizes that they ship with, but calls of a size that two processes can share, the
same for both. Each process has one thread. The runs take turns; the median of their iterations counts, by a clock. The
ratio by processor time is what two processes would reach without waiting for one another: what is missing to 2 is work
that both do, and the exchange. It can be trusted on a machine that does other work too. The ratio of two separate runs,
made at once, is what the machine permits: they share its caches and clocks, and nothing else.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median

from mmrl_shapeworld.process_runs import ProcessRun, train

BOUND = 1.7
RUNS = {"quickstart": ("data.micro_batch=48",), "shapes-vlm": ("data.micro_batch=64",)}
SMALL = {"quickstart": ("data.groups=2", "data.micro_batch=12"), "shapes-vlm": ("data.groups=2", "data.micro_batch=16")}
HEAD = (
    "| recipe | iterations/s, one process | two processes | ratio, ≥ 1.7 | of two separate runs | by processor time "
    "| communication, share of the time | parameters differ by |\n|-|-|-|-|-|-|-|-|"
)


def train_separately(recipe: str, *overrides: str) -> float:
    """Train twice at once, each with one process, and return the mean seconds of an iteration."""
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: train(1, recipe, *overrides), range(2))
        return mean(run.seconds for run in runs)


def line(recipe: str, ones: list[ProcessRun], twos: list[ProcessRun], separate: list[float]) -> tuple[str, float]:
    """Return a row of the table and the ratio; `separate` has the seconds of `train_separately`."""
    alone, together = (median(run.seconds for run in runs) for runs in (ones, twos))
    ratio = median(one.seconds / two.seconds for one, two in zip(ones, twos, strict=True))
    permitted = median(2 * one.seconds / seconds for one, seconds in zip(ones, separate, strict=True))
    possible = median(
        2 * one.mean("seconds/cpu") / two.mean("seconds/cpu") for one, two in zip(ones, twos, strict=True)
    )
    waiting = median(run.mean("seconds/communication") / run.seconds for run in twos)
    apart = max(one.difference(two) for one, two in zip(ones, twos, strict=True))
    verdict = "reached" if ratio >= BOUND else "**missed**"
    row = f"| {recipe} | {1 / alone:.2f} | {1 / together:.2f} | {ratio:.2f} ({verdict}) | {permitted:.2f} "
    row += f"| {possible:.2f} | {waiting:.0%} | {apart:.0e} |"
    return row, ratio


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small, and no bound")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    print(HEAD)
    ratios = []
    for recipe, overrides in (SMALL if args.smoke else RUNS).items():
        length = (f"training.iterations={3 if args.smoke else 8}",)
        ones, twos, separate = [], [], []
        for _ in range(1 if args.smoke else args.turns):
            ones.append(train(1, recipe, *overrides, *length))
            twos.append(train(2, recipe, *overrides, *length))
            separate.append(train_separately(recipe, *overrides, *length))
        text, ratio = line(recipe, ones, twos, separate)
        ratios.append(ratio)
        print(text, flush=True)
    if not args.smoke and min(ratios) < BOUND:
        raise SystemExit(f"two processes are less than {BOUND} times as fast as one")


if __name__ == "__main__":
    main()
