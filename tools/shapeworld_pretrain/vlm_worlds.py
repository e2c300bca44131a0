"""Trains the VLM of the worlds: the embedded VLM, with more words, imitates answers to the questions of all worlds.

python -m tools.shapeworld_pretrain.vlm_worlds train --out DIR
python -m tools.shapeworld_pretrain.vlm_worlds measure --out DIR    # the numbers of docs/shapeworld.md

Right answers come first and those of a careless annotator last, as in `tools.shapeworld_pretrain.vlm`. One question in
six is of an out-of-distribution form: as a large model has seen orange things before it is trained on red ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM
from mmrl_shapeworld.vqa.questions import NAMES, Question
from mmrl_shapeworld.worlds.fact_graphs import hops
from mmrl_shapeworld.worlds.spurious_clips import cued_clip
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_SHAPES, UNSEEN_SHAPES
from mmrl_shapeworld.worlds.world_splits import WORLDS, checksum, measure_of, world_questions, world_sample
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.vlm import build_optimizers, losses_of, with_new_words
from tools.shapeworld_pretrain.vlm_batches import BatchBuilder
from tools.shapeworld_pretrain.vlm_evaluate import answers
from tools.shapeworld_pretrain.vlm_hints import Hints

GROUPS: tuple[dict[str, int], ...] = (
    {"crowd": 10},
    {"chart-table": 6, "caption": 6, "nested-table": 4},
    {"refer": 14, "screen": 6, "page": 4, "letters": 14, "graph": 48},
    {"clip": 14},
)
"""Questions of each world in a step; those of a group go through the model together."""
A_STEP = sum(count for group in GROUPS for count in group.values())
UNSEEN = 1 / 6
"""The share of the questions that are of an out-of-distribution form."""
REGION_NAMES = tuple(
    dict.fromkeys(
        (
            *(f"{colour} {shape}" for colour in COLOUR_NUMBERS for shape in SEEN_SHAPES + UNSEEN_SHAPES),
            *(f"{colour} bar" for colour in COLOUR_NUMBERS),
            *NAMES,
        )
    )
)


def start(source: Path = VLM) -> tuple[Qwen3VLForConditionalGeneration, Qwen3VLProcessor]:
    """Return a model with embeddings for the words and pieces of the worlds, new ones if need be, and its processor.

    `source` is the folder of the embedded VLM, or of a model that this script saved.
    """
    processor = vlm_model.processor(of_worlds=True)
    return with_new_words(source, processor), processor


def draw(world: str, rng: np.random.Generator) -> Question:
    """Return a question whose checksum is that of training data.

    The cue of a clip says nothing here, and most questions about graphs have one hop.
    """
    usual = WORLDS[world].draw
    if world == "clip":
        usual = cued_clip(agrees=0.25)
    elif world == "graph":
        usual = hops(int(rng.choice([1, 2, 3], p=[0.8, 0.15, 0.05])))
    while True:
        forms = list(WORLDS[world].unseen.values())
        form = forms[rng.integers(len(forms))] if rng.random() < UNSEEN and world != "clip" else usual
        question = form(rng)
        if checksum(question) % 8 < 5:
            return question


def train(
    folder: Path,
    minutes: float,
    source: Path = VLM,
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
    careless_from: float = 0.8,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `source` is the folder to go on from; `muon` and `adamw` are learning rates, which fall to zero; `careless_from` is
    the share of the time after which answers are the annotator's.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(800 + seed)
    model, processor = start(source)
    processor.save_pretrained(folder)
    batches, hints = BatchBuilder(model, processor, REGION_NAMES), Hints(vlm_model.VLMSize().width, REGION_NAMES)
    optimizers = build_optimizers(nn.ModuleList([model, hints]), muon, adamw)
    running: dict[str, float] = {}
    started, step, spent = time.process_time(), 0, 0.0
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent)
        for group in GROUPS:
            worlds = [world for world, count in group.items() for _ in range(count)]
            questions = [draw(world, rng) for world in worlds]
            texts = [question.annotated if spent > careless_from else question.right for question in questions]
            losses, hint = losses_of(model, hints, batches.batch(questions, texts))
            ((losses.sum() + 0.5 * hint * len(worlds)) / A_STEP).backward()
            running["hints"] = 0.95 * running.get("hints", hint.item()) + 0.05 * hint.item()
            for world, loss in zip(worlds, losses.tolist(), strict=True):
                running[world] = 0.99 * running.get(world, loss) + 0.01 * loss
        advance(optimizers, model)
        step += 1
        if step % 50 == 0:
            summary = " ".join(f"{world} {loss:.3f}" for world, loss in running.items())
            print(f"worlds step {step} ({spent:.0%}) {summary}", flush=True)
            model.save_pretrained(folder)
    model.eval().save_pretrained(folder)


def mean_reward(world: str, questions: Sequence[Question], texts: Sequence[str]) -> float:
    """Return the mean reward of answers, in [0, 1]; malformed answers count as 0."""
    reward = measure_of(world)
    items = [
        reward_input(world_sample(world, question, str(n)), text, n, str(n))
        for n, (question, text) in enumerate(zip(questions, texts, strict=True))
    ]
    return float(np.nan_to_num(np.asarray(reward.score(items).values[reward.name])).mean())


def main() -> None:
    """Train the model, or print the table of its rewards."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "measure"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--source", type=Path, default=VLM, help="folder of the model to go on from")
    parser.add_argument("--careless-from", type=float, default=0.8, help="share of the time on right answers")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=256, help="of each world, to measure on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "train":
        rates = {"muon": 0.015 * args.rate, "adamw": 2e-3 * args.rate}
        train(args.out, args.minutes, args.source, args.seed, careless_from=args.careless_from, **rates)
        return
    model = Qwen3VLForConditionalGeneration.from_pretrained(args.out)
    processor = Qwen3VLProcessor.from_pretrained(args.out)
    torch.manual_seed(0)
    print("| world | reward at T = 1 | greedy | unseen, at T = 1 | unseen, greedy | annotator |\n|-|-|-|-|-|-|")
    for world in WORLDS:
        cells = []
        for part in ("development", "ood"):
            questions = [question for _, question in world_questions(world, part)[: args.questions]]
            for greedy in (False, True):
                cells.append(mean_reward(world, questions, answers(model, processor, questions, greedy)))
            if part == "development":
                annotator = mean_reward(world, questions, [question.annotated for question in questions])
        print(f"| {world} | {' | '.join(f'{cell:.3f}' for cell in (*cells, annotator))} |", flush=True)


if __name__ == "__main__":
    main()
