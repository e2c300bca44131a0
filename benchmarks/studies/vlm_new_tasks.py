"""Measure what reinforcement adds to imitation, on tasks that the embedded vision-language model was never taught.

    python benchmarks/studies/vlm_new_tasks.py              # 3 runs of at most 8 CPU-minutes; finished ones are kept
    python benchmarks/studies/vlm_new_tasks.py --seeds 1    # seed 0 alone

Trains the recipe `shapes-new-tasks`, which first imitates a careless annotator's answers and then goes on with GRPO.
Evaluated before, between and after: 256 validation samples of each of the four tasks, drawn at temperature 1 with the
same noise each time, and once greedily. Settings were chosen on `vlm-new-development`. Writes
`docs/results/new-tasks.md`, and the curves of the four pages in `docs/tasks/`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from seeded_runs import cpu_minutes, finished, folder, mean_curve, train

from mmrl.config import load_config
from mmrl.evaluation.final_summary import curve_text
from mmrl.evaluation.results import Evaluation, RewardChange
from mmrl.evaluation.run_reader import read_run
from mmrl.rewards import load
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.reward_io import reward_input
from mmrl.statistics.intervals import interval_text, paired_difference
from mmrl_shapeworld.vqa.question_splits import REWARDS, as_sample, questions

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/results/new-tasks.md"
RECIPE, ARM = "shapes-new-tasks", "imitation-then-grpo"
DRAWN = {"": "At temperature 1", "greedy": "Greedy"}


def main() -> None:
    """Train what is missing, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/vlm_new_tasks"))
    args = parser.parse_args()
    for seed in range(args.seeds):
        train(RECIPE, ARM, seed, args.runs, ())
    if not finished(args.runs, ARM, args.seeds):
        parser.error(f"not all runs in {args.runs} are finished; start this again to go on")
    runs = [folder(args.runs, ARM, seed) for seed in range(args.seeds)]
    steps = evaluated_steps()
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(runs, steps), encoding="utf-8")
    print(PAGE)
    fill_task_pages(runs, steps)


def evaluated_steps() -> tuple[int, int, int]:
    """The iterations that are compared: before anything, after the warm-up, and at the end.

    Raises:
        ValueError: the recipe does not evaluate after its warm-up.
    """
    config = load_config(RECIPE)
    if config.pretraining is None or config.pretraining.iterations != config.evaluation.every:
        raise ValueError(
            f"{RECIPE}: evaluation.every must be pretraining.iterations, so that the two parts can be separated"
        )
    return 0, config.pretraining.iterations, config.training.iterations


def page(runs: Sequence[Path], steps: tuple[int, int, int]) -> str:
    """docs/results/new-tasks.md."""
    lines = [
        "# The embedded vision-language model, on four tasks without pre-training",
        "",
        "<!-- Written by benchmarks/studies/vlm_new_tasks.py. -->",
        "",
        f"One run, all four tasks mixed: {steps[1]} iterations of imitation, 16 demonstrations each, and then",
        f"{steps[2] - steps[1]} of GRPO, 16 groups of 16 answers. The demonstrations are a careless annotator's, so",
        "GRPO can improve on imitation. Measured on 256 validation samples of each task, which were not used to",
        "choose settings, the same noise each time. In brackets the paired 95 % interval of the gain of GRPO.",
        "Rewards are those of the tasks' recipes, in [0, 1].",
        "",
        "```bash",
        f"mmrl train {RECIPE}",
        "python benchmarks/studies/vlm_new_tasks.py   # three seeds",
        "```",
        "",
        f"CPU-minutes of each seed, all evaluations included: {', '.join(f'{cpu_minutes(run):.1f}' for run in runs)}.",
    ]
    annotators = annotators_reward()
    for name, title in DRAWN.items():
        lines += ["", f"## {title}", ""]
        lines.append(
            "| | annotator | before training | "
            f"{' '.join(f'seed {n}: imitation, then GRPO |' for n in range(len(runs)))} GRPO adds |"
        )
        lines.append(f"|-|-|-|{'-|' * len(runs)}-|")
        sources = ("", *annotators)
        fallen = []
        for source in sources:
            taught, added = ([change(run / name, *pair, source) for run in runs] for pair in (steps[:2], steps[1:]))
            lines.append(_row(source, annotators, taught, added))
            fallen += [f"{source} (seed {n})" for n, c in enumerate(added) if source and c.difference.verdict == "down"]
        shares = [np.mean([malformed(run / name, step) for run in runs]) for step in steps[1:]]
        lines += [
            "",
            f"Significantly down in GRPO: {', '.join(fallen) or 'none'}. Malformed answers: {shares[0]:.1%} after",
        ]
        lines += [f"imitation, {shares[1]:.1%} after GRPO."]
    return "\n".join(lines) + "\n"


def change(run: Path, before: int, after: int, source: str = "") -> RewardChange:
    """Return the change of the total on one source, or on all, between two evaluations of a run."""
    first, last = (Evaluation.load(run, step, images=False) for step in (before, after))
    rows = np.array([source in ("", each) for each in first.sources])
    a, b = (evaluation.by_prompt("total")[rows] for evaluation in (first, last))
    return RewardChange(float(np.nanmean(a)), float(np.nanmean(b)), paired_difference(a, b))


def malformed(run: Path, step: int) -> float:
    """The share of answers that their reward could not read, which counts 0."""
    status = Evaluation.load(run, step, images=False).status
    return float(np.mean([Status.INVALID in row for row in zip(*status.values(), strict=True)]))


def annotators_reward() -> dict[str, float]:
    """{task: what the annotator's own answers to the validation questions earn}."""
    earned = {}
    for task, task_questions in questions("vlm-new-validation").items():
        choice = REWARDS[task]
        samples = [as_sample(task, question, str(n)) for n, question in enumerate(task_questions)]
        items = [
            reward_input(sample, question.annotated, n, str(n))
            for n, (sample, question) in enumerate(zip(samples, task_questions, strict=True))
        ]
        earned[task] = float(np.mean(load(choice.name, **choice.args).score(items).values[choice.name]))
    return earned


def _row(
    source: str, annotators: dict[str, float], taught: Sequence[RewardChange], added: Sequence[RewardChange]
) -> str:
    annotated = annotators[source] if source else float(np.mean(list(annotators.values())))
    cells = "".join(
        f" {c.before:.3f}, {c.after:.3f} ({c.difference.mean:+.3f}, {interval_text(c.difference)}) |" for c in added
    )
    mean = float(np.mean([c.difference.mean for c in added]))
    title = source or "**all tasks**"
    return f"| {title} | {annotated:.3f} | {taught[0].before:.3f} |{cells} **{mean:+.3f}** |"


def fill_task_pages(runs: Sequence[Path], steps: tuple[int, int, int]) -> None:
    """Under `<!-- curve of shapes-new-tasks: TASK -->` on each task's page: its means, and its reward under GRPO."""
    records = [read_run(run) for run in runs]
    for path in sorted((ROOT / "docs/tasks").glob("*.md")):
        text, marker, _ = path.read_text(encoding="utf-8").partition(f"<!-- curve of {RECIPE}: {path.stem} -->")
        if not marker:
            continue
        sentences = []
        for name in DRAWN:
            imitated, added = (
                [change(run / name, *pair, path.stem) for run in runs] for pair in (steps[:2], steps[1:])
            )
            means = (
                np.mean([c.before for c in imitated]),
                np.mean([c.before for c in added]),
                np.mean([c.after for c in added]),
            )
            sentences.append("{:.2f} before training, {:.2f} after imitation, {:.2f} after GRPO".format(*means))
        counted = f"mean of {len(runs)} seeds" if len(runs) > 1 else "one seed"
        drawn = curve_text(mean_curve(records, path.stem))
        path.write_text(
            f"{text}{marker}\n"
            f"`mmrl train {RECIPE}` imitates the answers of a careless annotator, then trains with GRPO, on four tasks "
            "at once.\n"
            f"At temperature 1: {sentences[0]};\ngreedy: {sentences[1]}\n"
            f"({counted}, [all numbers](../results/new-tasks.md)). The reward during GRPO:\n\n"
            f"```\n{drawn}\n```\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
