"""Measure a GRPO update of a vision-language model whose answers share their prompt, and one where they do not.

    python benchmarks/vlm_update.py            # fails where a ratio is below 0.85 of the ideal one
    python benchmarks/vlm_update.py --smoke    # seconds: does it still run, and are the results equal?

Two Qwen3-VL models with random weights, 3 M and about 50 M parameters, a prompt of a picture of 256 tokens and a
question (P = 300), G = 8 answers of R = 32 and R = 128 tokens. The plain path is what trainers do: each answer is a row
behind its own copy of the prompt, pictures too. Ours packs them (`policy.attention: mmrl`). Both compute Dr. GRPO's
loss and all gradients of the language model; the ideal ratio is that of the tokens, G (P + R) / (P + G R). They take
turns in one process; the median of their ratios counts, in CPU time. Memory is what a step takes beyond what was held.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging
from vlm_step import FULL, Work, build, pictures, questions

sys.path.append(str(Path(__file__).resolve().parents[1] / "kernels" / "benchmarks"))
from measure import compare

from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.tokens.log_probs import TokenScores
from mmrl.understanding.vlm import VLM, describe
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import packed_scores, row_scores
from mmrl_shapeworld.shared_prompts import gradient, policy_loss, random_answers

BOUND = 0.85  # of the ideal ratio
SIZES = {
    "tiny": replace(FULL, prompts=1, width=192, layers=4, turns=7),
    "50 M": replace(FULL, prompts=1, width=640, layers=7, turns=3),
}
SMOKE = {"smoke": replace(FULL, prompts=1, answers=4, side=56, words=10, width=96, layers=2, turns=2)}


@dataclass(frozen=True)
class Found:
    """The measurement of one size at one length of answers."""

    model: str
    parameters: int
    prompt: int  # P
    answers: int  # G
    tokens: int  # R
    ratio: float
    ideal: float
    plain_s: float
    plain_mib: float
    packed_mib: float
    apart: float  # the largest difference of a log-probability
    gradient_apart: float  # of the gradient, relative to its norm

    @property
    def reached(self) -> bool:
        """True if the bar is met."""
        return self.ratio >= BOUND * self.ideal


def measure(name: str, work: Work, tokens: int) -> Found:
    """Both paths on the same answers."""
    model, processor = build(work)
    known = describe(model.eval(), processor, torch.device("cpu"))
    policy = VLMPolicy(known, VLMConfig(model="benchmark", train="full"), TokenSamplingConfig(), MediaConfig())
    vlm = policy.vlm
    recording = random_answers(vlm, pictures(work)[0], questions(work)[0], work.answers, tokens, seed=0)
    advantages = torch.linspace(-1, 1, work.answers)[:, None]
    paths: dict[str, Callable[[], TokenScores]] = {
        "plain": lambda: row_scores(vlm, recording, separate_prompts=True),
        "packed": lambda: packed_scores(vlm, recording, fused="auto"),
    }
    apart = (paths["plain"]()[0] - paths["packed"]()[0]).abs().max().item()
    gradients = [gradient(vlm, path, advantages) for path in paths.values()]
    gradient_apart = ((gradients[1] - gradients[0]).norm() / gradients[0].norm()).item()
    found = compare({key: train(vlm, path, advantages) for key, path in paths.items()}, work.turns)
    prompt = recording.prompts[0].length
    ideal = work.answers * (prompt + tokens) / (prompt + work.answers * tokens)
    parameters = sum(p.numel() for p in model.parameters())
    plain, packed = found["plain"], found["packed"]
    return Found(
        name,
        parameters,
        prompt,
        work.answers,
        tokens,
        packed.ratio,
        ideal,
        plain.seconds,
        plain.peak_mib,
        packed.peak_mib,
        apart,
        gradient_apart,
    )


def train(vlm: VLM, scores: Callable[[], TokenScores], advantages: Tensor) -> Callable[[], None]:
    """Forward and backward."""

    def step() -> None:
        vlm.model.zero_grad(set_to_none=False)  # gradients are not what is compared: they are held by both
        policy_loss(scores()[0], advantages).backward()

    return step


def line(found: Found) -> str:
    """A row of the table."""
    verdict = "reached" if found.reached else "**missed**"
    return (
        f"| {found.model}, {found.parameters / 1e6:.1f} M | {found.prompt} | {found.answers} | {found.tokens} | "
        f"{found.ratio:.2f} | {found.ideal:.2f} | {found.ratio / found.ideal:.2f} ({verdict}) | "
        f"{found.plain_mib:.0f} → {found.packed_mib:.0f} | {found.apart:.0e} | {found.gradient_apart:.0e} |"
    )


HEAD = (
    "| model | P | G | R | speedup | ideal | share of the ideal, ≥ 0.85 | peak MiB | log-probs differ by | "
    "gradients differ by |\n|-|-|-|-|-|-|-|-|-|-|"
)


def main() -> None:
    """Print the table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small, and no bound")
    parser.add_argument("--out", type=Path, help="a folder for the table and the numbers")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(HEAD)
    found = []
    for name, work in (SMOKE if args.smoke else SIZES).items():
        for tokens in (8,) if args.smoke else (32, 128):
            found.append(measure(name, work, tokens))
            print(line(found[-1]), flush=True)
    if any(each.apart > 2e-5 or each.gradient_apart > 1e-4 for each in found):
        raise SystemExit("the two paths do not agree")
    if args.out:
        write(args.out, found)
    if not args.smoke and not all(each.reached for each in found):
        raise SystemExit("a ratio is below 0.85 of the ideal one")


def write(folder: Path, found: list[Found]) -> None:
    """vlm_update.md and .json."""
    page = [
        "# An update of a vision-language model, with and without a shared prompt",
        "",
        "<!-- Written by benchmarks/vlm_update.py. -->",
        "",
        "One thread of a CPU, float32; forward and backward of Dr. GRPO's loss on one group, all of the language",
        "model trained. The baseline repeats the prompt and its image for each answer.",
        "",
        "```bash",
        "python benchmarks/vlm_update.py --out docs/results",
        "```",
        "",
        *HEAD.splitlines(),
        *map(line, found),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vlm_update.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    (folder / "vlm_update.json").write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
