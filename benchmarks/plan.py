"""Compare the predictions of `mmrl plan` with runs of one and of two processes.

    python benchmarks/plan.py            # fails where a prediction for two processes is off by more than a quarter
    python benchmarks/plan.py --smoke    # a minute, small sizes: does it still run?

The recipes and sizes of `benchmarks/processes.py`. Each process has one thread. In each turn the prediction is made
just before the runs, and the median of the ratios counts. Other programs disturb the clock: the processor time of a
process, which hardly depends on them, is compared with the prediction without exchange and waiting.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median

from mmrl.cli.console import quiet_diffusers
from mmrl.config import load_config
from mmrl.planning.plan import plan_run
from mmrl.planning.prediction import StepSeconds
from mmrl_shapeworld.process_runs import ProcessRun, train

BOUND = 0.25
RUNS = {"quickstart": ("data.micro_batch=48",), "shapes-vlm": ("data.micro_batch=64",)}
SMALL = {"quickstart": ("data.groups=2", "data.micro_batch=12"), "shapes-vlm": ("data.groups=2", "data.micro_batch=16")}
HEAD = (
    "| recipe | clock, one process: predicted / measured | two processes | processor time, one process: predicted / "
    "measured | two processes | two processes, seconds predicted | measured |\n|-|-|-|-|-|-|-|"
)


@dataclass(frozen=True)
class Comparison:
    """The prediction and the run of some processes."""

    predicted: StepSeconds
    measured: ProcessRun
    processes: int

    @property
    def clock(self) -> float:
        """Predicted over measured seconds of an iteration."""
        return self.predicted.total / self.measured.seconds

    @property
    def processor(self) -> float:
        """The same for the processor time of a process, without exchange and waiting."""
        computing = self.predicted.total - self.predicted.communication - self.predicted.lateness
        return computing / (self.measured.mean("seconds/cpu") / self.processes)


def compare(recipe: str, overrides: tuple[str, ...], repeats: int, iterations: int) -> list[Comparison]:
    """Predict and run one and two processes, with replicas."""
    with quiet_diffusers():
        forecasts = plan_run(load_config(recipe, [*overrides, "evaluation={}"]), 2, repeats=repeats).forecasts
    length = f"training.iterations={iterations}"
    return [
        Comparison(each.places[0].seconds, train(each.devices, recipe, *overrides, length), each.devices)
        for each in forecasts
    ]


def line(recipe: str, turns: list[list[Comparison]]) -> tuple[str, float]:
    """Return a row of the table, and the ratio of the clock for two processes."""
    clocks, processors = (
        [median(getattr(turn[place], name) for turn in turns) for place in (0, 1)] for name in ("clock", "processor")
    )
    seconds = [median(turn[1].predicted.total for turn in turns), median(turn[1].measured.seconds for turn in turns)]
    cells = " | ".join(f"{value:.2f}" for value in (*clocks, *processors, *seconds))
    return f"| {recipe} | {cells} |", clocks[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small, and no bound")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    print(HEAD)
    ratios = []
    for recipe, overrides in (SMALL if args.smoke else RUNS).items():
        repeats, iterations, count = (1, 3, 1) if args.smoke else (8, args.iterations, args.turns)
        turns = [compare(recipe, overrides, repeats, iterations) for _ in range(count)]
        text, ratio = line(f"{recipe}, `{overrides[-1]}`", turns)
        ratios.append(ratio)
        print(text, flush=True)
    if not args.smoke and max(abs(ratio - 1) for ratio in ratios) > BOUND:
        raise SystemExit(f"a prediction for two processes is off by more than {BOUND:.0%}")


if __name__ == "__main__":
    main()
