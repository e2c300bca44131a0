"""Does reinforcement learning make the embedded edit, inpaint, video and UNet pipelines better?

    python benchmarks/studies/worlds_learning.py                     # 12 runs of a few CPU-minutes; finished ones stay
    python benchmarks/studies/worlds_learning.py --seeds 1 --arms shapes-edit  # of one recipe, seed 0 alone

Trains the recipes `shapes-edit`, `shapes-inpaint`, `shapes-video` and `shapes-ddpo` on seeds 0, 1 and 2, each evaluated
on its validation split before and after with the same noise. Writes `docs/results/edit-inpaint-video.md` and the curves
of `docs/tasks/{edit,inpaint,text-to-video}.md` from the runs that are finished.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from seeded_runs import cpu_minutes, folder, row, train

from mmrl.config import load_config
from mmrl.evaluation.final_summary import curve_text
from mmrl.evaluation.run_reader import read_run
from mmrl.evaluation.summary import RunSummary, summarise_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/results/edit-inpaint-video.md"


@dataclass(frozen=True)
class RecipeArm:
    """A recipe, and how its rewards are called on the page."""

    title: str
    measures: dict[str, str]  # by the name of the reward
    task: str | None = None  # the page in docs/tasks that shows the curve
    heldout: bool = False  # whether it is evaluated on a second set too


ARMS = {
    "shapes-edit": RecipeArm(
        "Edit: `shapes-edit`, DDPO on a tiny InstructPix2Pix",
        {
            "shapeworld_edit_strict": "strictly correct",
            "shapeworld_edit": "partial credit (trained)",
            "shapeworld_edit_changed": "the named object changed",
            "shapeworld_edit_kept": "the rest kept",
        },
        task="edit",
    ),
    "shapes-inpaint": RecipeArm(
        "Inpaint: `shapes-inpaint`, DDPO on a tiny 9-channel UNet",
        {
            "shapeworld_inpaint_strict": "strictly correct",
            "shapeworld_inpaint": "partial credit (trained)",
            "shapeworld_inpaint_filled": "the right object in the hole",
            "shapeworld_inpaint_kept": "the rest kept",
        },
        task="inpaint",
    ),
    "shapes-video": RecipeArm(
        "Text to video: `shapes-video`, DiffusionNFT on a tiny AnimateDiff",
        {
            "shapeworld_video_strict": "strictly correct",
            "shapeworld_video": "partial credit (trained)",
        },
        task="text-to-video",
    ),
    "shapes-ddpo": RecipeArm(
        "Text to image: `shapes-ddpo`, DDPO on a tiny UNet",
        {
            "shapeworld_strict": "strictly correct",
            "shapeworld": "partial credit (trained)",
            "shapeworld_heldout": "observer (held out)",
        },
        heldout=True,
    ),
}


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/worlds_learning"))
    args = parser.parse_args()
    for seed in range(args.seeds):
        for arm in args.arms:
            train(arm, arm, seed, args.runs, ())
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(args.runs), encoding="utf-8")
    print(PAGE)
    for arm in ARMS:
        fill_task_page(arm, args.runs)


def finished_seeds(runs: Path, arm: str) -> list[int]:
    """The seeds of an arm whose runs are done, from 0 on."""
    return [seed for seed in range(16) if (folder(runs, arm, seed) / "report.html").exists()]


def page(runs: Path) -> str:
    """docs/results/edit-inpaint-video.md."""
    lines = [
        "# Training the embedded edit, inpaint, video and UNet pipelines",
        "",
        "<!-- Written by benchmarks/studies/worlds_learning.py. -->",
        "",
        "One core, float32, one thread. Means over validation samples, not used to choose settings; in brackets",
        "the paired difference to the base under the same prompts and noise, with its 95 % interval. Along the ODE,",
        "without guidance.",
        "",
        "```bash",
        *(f"mmrl train {arm}" for arm in ARMS),
        "python benchmarks/studies/worlds_learning.py   # all of them, three seeds",
        "```",
    ]
    for name, arm in ARMS.items():
        seeds = finished_seeds(runs, name)
        lines += ["", f"## {arm.title}", ""]
        if not seeds:
            lines += [f"Not run yet: `python benchmarks/studies/worlds_learning.py --arms {name}`."]
            continue
        config = load_config(name)
        minutes = ", ".join(f"{cpu_minutes(folder(runs, name, seed)):.1f}" for seed in seeds)
        evaluation = config.evaluation
        drawn = f"{evaluation.prompts} validation samples" + (
            f", {evaluation.samples} answers to each" if evaluation.samples > 1 else ""
        )
        lines += [
            f"{config.training.iterations} iterations of {config.data.groups} × {config.data.group_size}. CPU-minutes "
            f"of each seed, both evaluations included: {minutes}. {drawn}:",
            "",
            *table(seeds, [summarise_run(folder(runs, name, seed)) for seed in seeds], arm.measures),
        ]
        if arm.heldout:
            found = [summarise_run(folder(runs, name, seed) / "heldout") for seed in seeds]
            lines += ["", "Compositions that do not occur in training:", "", *table(seeds, found, arm.measures)]
        lines += ["", "The reward during training, mean of these seeds:", "", "```", curve(name, runs), "```"]
        if len(seeds) < 3:
            lines += ["", f"Further seeds: `python benchmarks/studies/worlds_learning.py --arms {name}`."]
    return "\n".join(lines) + "\n"


def table(seeds: list[int], summaries: list[RunSummary], measures: dict[str, str]) -> list[str]:
    """Each measure over the seeds."""
    return [
        f"| | base |{''.join(f' seed {seed} |' for seed in seeds)} mean difference |",
        f"|-|-|{'-|' * (len(seeds) + 1)}",
        *(row(title, [summary.changes[name] for summary in summaries]) for name, title in measures.items()),
    ]


def curve(arm: str, runs: Path, width: int = 4) -> str:
    """The total reward of every `width` iterations, as text."""
    records = [read_run(folder(runs, arm, seed)) for seed in finished_seeds(runs, arm)]
    totals = [record.curve("train", "reward/total").values for record in records]
    mean = np.mean([values[: min(map(len, totals))] for values in totals], axis=0)
    parts = [float(np.mean(mean[begin : begin + width])) for begin in range(0, len(mean) - width + 1, width)]
    return curve_text(parts)


def fill_task_page(name: str, runs: Path) -> None:
    """Under `<!-- measured: TASK -->` on the task's page: before and after, and the reward while training."""
    arm, seeds = ARMS[name], finished_seeds(runs, name)
    if arm.task is None or not seeds:
        return
    path = ROOT / f"docs/tasks/{arm.task}.md"
    text, marker, _ = path.read_text(encoding="utf-8").partition(f"<!-- measured: {arm.task} -->")
    if not marker:
        return
    found = [summarise_run(folder(runs, name, seed)) for seed in seeds]
    sentences = []
    for measure, title in list(arm.measures.items())[:2]:
        changes = [summary.changes[measure] for summary in found]
        before, after = np.mean([each.before for each in changes]), np.mean([each.after for each in changes])
        sentences.append(f"{title} {before:.2f} to {after:.2f}")
    count = "seed 0" if seeds == [0] else f"mean of {len(seeds)} seeds"
    path.write_text(
        f"{text}{marker}\n`mmrl train {name}`, {count}: {', '.join(sentences)}\n"
        "([all numbers](../results/edit-inpaint-video.md)). The reward during training:\n\n"
        f"```\n{curve(name, runs)}\n```\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
