"""Measure an iteration whose rollouts, rewards and updates overlap, beside one in which they take turns.

    python benchmarks/overlap.py            # fails where an iteration takes over 1.1 times its longest phase
    python benchmarks/overlap.py --smoke    # seconds: does it still run?

The embedded model answers 32 questions an iteration. Its rollout takes 0.5 s, and each reward 0.5 s; of both this
machine waits for most, as for a server. Medians by a clock, without the iterations that fill the pipeline.
"""

from __future__ import annotations

import argparse

from mmrl_shapeworld.delayed_runs import DelayedRun, delayed_run

BOUND = 1.1
SECONDS = 0.5
RUNS = {
    "synchronous": (),
    "run.overlap: {lag: 1}": ("run.overlap={lag: 1}",),
    "run.overlap: {lag: 2, stream: true}": ("run.overlap={lag: 2, stream: true}",),
}
BOUNDED = "run.overlap: {lag: 2, stream: true}"
HEAD = "| | iteration | rollout | reward | update | iteration / longest phase |\n|-|-|-|-|-|-|"


def line(name: str, run: DelayedRun, seconds: float) -> tuple[str, float]:
    """Return a row of the table, and the ratio of an iteration to its longest phase."""
    phases = {"rollout": run.phase("rollout"), "reward": seconds, "update": run.phase("update")}
    ratio = run.seconds / max(phases.values())
    cells = [f"{each:.3f} s" for each in (run.seconds, *phases.values())]
    return f"| {name} | {' | '.join(cells)} | {ratio:.2f} |", ratio


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="short, and no bound")
    args = parser.parse_args()
    seconds, iterations = (0.1, 6) if args.smoke else (SECONDS, 20)
    ratios = {}
    print(HEAD)
    for name, overrides in RUNS.items():
        run = delayed_run(0, *overrides, rollout=seconds, reward=seconds, iterations=iterations)
        text, ratios[name] = line(name, run, seconds)
        print(text, flush=True)
    if not args.smoke and ratios[BOUNDED] > BOUND:
        raise SystemExit(f"an overlapped iteration takes {ratios[BOUNDED]:.2f} times its longest phase, over {BOUND}")


if __name__ == "__main__":
    main()
