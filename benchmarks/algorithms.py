"""Every algorithm for generators on ShapeWorld, from the same base, with the same CPU time of training.

    python benchmarks/algorithms.py                            # all arms and seeds; what is there is kept
    python benchmarks/algorithms.py --arms flow_grpo diffusion_nft --seeds 1
    python benchmarks/algorithms.py --page                     # write the page anew; trains nothing

A pilot of a few iterations measures what an iteration of an arm costs (CPU-seconds of its process, one thread);
`--budget` divided by that is how many iterations it gets. Pilots are kept in docs/results/algorithms.json, so that the
numbers of iterations can be repeated elsewhere. Evaluations, four on the way and one before, are paid apart: 768
validation prompts, 10 steps along the ODE, always the same noise. Writes docs/results/algorithms.md, .json and .svg.

The arms are a table, in algorithm_arms.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from algorithm_arms import ARMS, Arm
from algorithm_results import PROMPTS, Results, digest, measured, write_page

sys.path.append(str(Path(__file__).parent / "studies"))
from seeded_runs import train

from mmrl.config.loading.load import load_config

ROOT = Path(__file__).resolve().parents[1]
PILOT = 6  # iterations, of which the first is left out: it warms caches
LOOKS = 4  # evaluations on the way, the last one included
SMALL = ("data.groups=2", "data.group_size=6", "sampling.steps=3", "sampling.window={}")
"""The overrides of `--smoke`, whose runs only show that everything is wired."""


def main() -> None:
    """Measure and train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--seeds", type=int, help="of each arm; unset: as the table of arms says")
    parser.add_argument("--budget", type=float, default=240.0, help="CPU-seconds of training in each run")
    parser.add_argument("--runs", type=Path, default=Path("runs/algorithms"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results", help="where the page and its numbers go")
    parser.add_argument("--page", action="store_true", help="write the page from the numbers there are")
    parser.add_argument("--smoke", action="store_true", help="two arms for seconds, into a separate folder")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the runs
    if args.smoke:
        with tempfile.TemporaryDirectory() as folder:
            run_all(["flow_grpo", "diffusion_nft"], 1, 1.0, Path(folder) / "runs", Path(folder), SMALL, prompts=6)
            print((Path(folder) / "algorithms.md").read_text(encoding="utf-8"))
        return
    if not args.page:
        run_all(args.arms, args.seeds, args.budget, args.runs, args.out)
    write_page(Results(args.out))
    print(args.out / "algorithms.md")


def run_all(
    arms: list[str],
    seeds: int | None,
    budget: float,
    runs: Path,
    out: Path,
    small: tuple[str, ...] = (),
    prompts: int = PROMPTS,
) -> None:
    """Seed 0 of every arm, then seed 1, and so on; numbers are written after each run."""
    results = Results(out)
    for seed in range(max(seeds or ARMS[arm].seeds for arm in arms)):
        for arm in [arm for arm in arms if seed < (seeds or ARMS[arm].seeds)]:
            run_one(arm, seed, budget, runs, results, small, prompts)
            write_page(results)


def run_one(
    name: str, seed: int, budget: float, runs: Path, results: Results, small: tuple[str, ...], prompts: int
) -> None:
    """Train one run to its last iteration, and keep its numbers. A run that fails is reported and left as it is."""
    arm = ARMS[name]
    changes = (*arm.overrides, *small)
    key = digest(arm, changes)
    folder = f"{name}-{key}-{budget:g}s"
    done = results.run(name, key, budget, seed)
    if done is not None and done["prompts"] == prompts:
        return
    try:
        cost = results.pilot(name, key) or pilot(name, key, changes, runs, results)
        iterations = max(1, int(budget / cost))
        looks = [
            f"training.iterations={iterations}",
            f"training.save_every={max(1, iterations)}",
            f"evaluation.every={-(-iterations // LOOKS)}",
            f"evaluation.prompts={prompts}",
            "evaluation.diversity_prompts=0",
            f"evaluation.rewards=[{', '.join(heldout_rewards(arm, changes))}]",
            "data.heldout=null",
            "run.pictures=4",
            "run.display=plain",
        ]
        train(arm.recipe, folder, seed, runs, [*changes, *looks])
    except subprocess.CalledProcessError as err:
        print(f"{name}, seed {seed}: failed with exit code {err.returncode}; going on with the others", file=sys.stderr)
        results.failed(name, key, budget, seed)
        return
    results.keep(name, key, budget, seed, measured(runs / folder / f"seed-{seed}", cost, prompts))


def pilot(name: str, key: str, changes: tuple[str, ...], runs: Path, results: Results) -> float:
    """CPU-seconds of an iteration, at the speed that the machine had when the first pilot was run."""
    arm, before = ARMS[name], clock()
    off = ("data.validation=null", "data.heldout=null", "evaluation={}", "run.display=plain")
    overrides = [*changes, *off, f"training.iterations={PILOT}", f"training.save_every={PILOT}"]
    train(arm.recipe, f"pilot-{name}-{key}", 0, runs, overrides)
    return results.keep_pilot(name, key, runs / f"pilot-{name}-{key}" / "seed-0", (before + clock()) / 2)


def heldout_rewards(arm: Arm, changes: tuple[str, ...]) -> list[str]:
    """Return the rewards that score every run besides those that it is trained on."""
    trained = {reward.name for reward in load_config(arm.recipe, changes).rewards}
    return [name for name in ("shapeworld", "shapeworld_heldout", "shapeworld_clip") if name not in trained]


def clock() -> float:
    """CPU-seconds of a fixed piece of work like a small denoiser's: how fast the machine is at present."""
    import torch

    torch.set_num_threads(1)
    x, weight = torch.ones(96, 64, 128), torch.full((128, 128), 1 / 128)
    took = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(60):
            x = torch.nn.functional.layer_norm(x @ weight, (128,)).relu_()
        took.append(time.process_time() - started)
    return min(took)


if __name__ == "__main__":
    main()
