"""Does training on a learnt reward, on a judge, or on both raise what the rules measure?

    python benchmarks/studies/reward_learning.py              # 9 runs of 3 to 4 minutes; finished ones are kept
    python benchmarks/studies/reward_learning.py --seeds 1    # of each recipe, seed 0 alone

Trains the recipes `shapes-clip`, `shapes-judge` and `shapes-clip-judge` on seeds 0, 1 and 2. The rule checker
(`shapeworld`) scores the same prompts and noise before and after, and the observer (`shapeworld_heldout`) looks too;
neither is trained on, except through the judge, which answers from the checker. Writes `docs/results/rewards.md`, and
the pictures that the CLIP overrates most into `docs/images/`.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from seeded_runs import finished, folder, row, train

from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.summary import RunSummary, summarise_run
from mmrl_shapeworld.judge_server import PORT, serving

ARMS = {
    "shapes-clip": "the tiny CLIP alone",
    "shapes-judge": "the judge, which answers from the rule checker",
    "shapes-clip-judge": "both, under GDPO",
}
MEASURES = {
    "shapeworld": "partial credit",
    "shapeworld_strict": "strictly correct",
    "shapeworld_heldout": "observer",
    "shapeworld_clip": "CLIP",
    "judge": "judge",
}
ROOT = Path(__file__).resolve().parents[2]
PAGE, GALLERY = ROOT / "docs/results/rewards.md", ROOT / "docs/images/clip_overrates.png"
PICTURES = 96


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/reward_learning"))
    args = parser.parse_args()
    judged = any("judge" in arm for arm in args.arms)
    with serving(PORT) if judged else nullcontext():
        for seed in range(args.seeds):
            for arm in args.arms:
                train(arm, arm, seed, args.runs, [f"run.pictures={PICTURES}"])
    results = {
        arm: [summarise_run(folder(args.runs, arm, seed)) for seed in range(args.seeds)]
        for arm in ARMS
        if finished(args.runs, arm, args.seeds)
    }
    PAGE.write_text(page(results, args.runs), encoding="utf-8")
    print(PAGE)


def page(results: dict[str, list[RunSummary]], runs: Path) -> str:
    """docs/results/rewards.md."""
    lines = [
        "# Training on a learnt reward, on a judge, and on both",
        "",
        "<!-- Written by benchmarks/studies/reward_learning.py. -->",
        "",
        "The quickstart's pipeline and settings (DiffusionNFT, 52 iterations of 8 prompts x 12), with other rewards.",
        "768 validation prompts, the same noise before and after, 10 steps along the ODE; in brackets the paired 95 %",
        "interval of the difference. Partial credit and strict correctness are the rule checker's; the observer is a",
        "network that is never a training reward. The rewards that a run was trained on are in italics.",
        "",
        "```bash",
        "python benchmarks/studies/reward_learning.py",
        "```",
    ]
    for arm, summaries in results.items():
        trained = {"shapes-clip": ("shapeworld_clip",), "shapes-judge": ("judge",)}.get(
            arm, ("shapeworld_clip", "judge")
        )
        lines += ["", f"## {ARMS[arm][0].upper()}{ARMS[arm][1:]} (`{arm}`)", ""]
        lines.append(f"| | base |{''.join(f' seed {seed} |' for seed in range(len(summaries)))} mean |")
        lines.append(f"|-|-|{'-|' * (len(summaries) + 1)}")
        for name, title in MEASURES.items():
            if name in summaries[0].changes:
                lines.append(row(f"*{title}*" if name in trained else title, [s.changes[name] for s in summaries]))
        ratios = ", ".join(f"{summary.diversity_ratio:.2f}" for summary in summaries)
        lines += ["", f"Diversity in a group, as a share of the base's: {ratios}."]
        verdicts = [summary.changes["shapeworld"].difference.verdict for summary in summaries]
        raised = verdicts.count("up")
        lines += ["", f"Partial credit rose on {raised} of {len(verdicts)} seeds (interval above 0)."]
    if "shapes-clip" in results:
        lines += ["", *overrated(folder(runs, "shapes-clip", 0), results["shapes-clip"])]
    return "\n".join(lines) + "\n"


def overrated(run: Path, summaries: list[RunSummary]) -> list[str]:
    """Return lines on CLIP against checker: correlations before and after, the pictures with the widest rank gap."""
    lines = ["## Reward hacking of the CLIP", ""]
    before, after = (Evaluation.load(run, step, images=True) for step in (0, summaries[0].steps[1]))
    correlations = [correlation(each) for each in (before, after)]
    right = after.values["shapeworld_strict"] > 0.5
    clip = after.values["shapeworld_clip"]
    fooled = float((clip[~right] >= np.median(clip[right])).mean())
    lines += [
        f"Rank correlation of CLIP and partial credit over the {len(before.ids)} pictures of seed 0: "
        f"{correlations[0]:.2f} before training and {correlations[1]:.2f} after it. Of the pictures that are not",
        f"strictly correct after training, {fooled:.0%} score at least as high as the median of those that are. The",
        f"images with the highest CLIP score relative to their partial credit, among the first {PICTURES}:",
        "",
        "![images with a high CLIP score and a low partial credit](../images/clip_overrates.png)",
    ]
    kept = [i for i, image in enumerate(after.images) if image is not None and not right[i]]
    worst = sorted(kept, key=lambda i: after.values["shapeworld"][i] - clip[i] / clip.max())[:6]
    gallery([(after.images[i], after.prompts[i], clip[i], after.values["shapeworld"][i]) for i in worst])
    return lines


def correlation(evaluation: Evaluation) -> float:
    """Spearman's, of the CLIP and the checker's partial credit."""
    from scipy.stats import spearmanr

    return float(spearmanr(evaluation.values["shapeworld_clip"], evaluation.values["shapeworld"]).statistic)


def gallery(pictures: list) -> None:
    """Pictures in a row, with prompt and scores below each."""
    canvas = Image.new("RGB", (180 * len(pictures), 200), "white")
    draw = ImageDraw.Draw(canvas)
    for column, (image, prompt, clip, credit) in enumerate(pictures):
        canvas.paste(image.convert("RGB").resize((128, 128), Image.Resampling.NEAREST), (180 * column + 26, 6))
        words = prompt.split()
        half = (len(words) + 1) // 2
        text = f"{' '.join(words[:half])}\n{' '.join(words[half:])}\nCLIP {clip:.2f}, partial credit {credit:.2f}"
        draw.multiline_text((180 * column + 90, 142), text, fill="black", anchor="ma", align="center", font_size=11)
    GALLERY.parent.mkdir(parents=True, exist_ok=True)
    canvas.save(GALLERY, optimize=True)


if __name__ == "__main__":
    main()
