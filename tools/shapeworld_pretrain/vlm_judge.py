"""Trains the VLM that judges pairs of pictures: the VLM of the worlds learns to read two pictures, and to prefer one.

python -m tools.shapeworld_pretrain.vlm_judge train --out DIR
python -m tools.shapeworld_pretrain.vlm_judge measure --out DIR    # the numbers of docs/shapeworld.md

A step has three kinds of rows about the same pairs: readings of some dimensions, which the prompt names, verdicts
without thoughts, and whole thoughts. All are right, unless the last part of the training is a careless judge's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from mmrl.config.media import MediaConfig
from mmrl.config.policy import ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rewards import load
from mmrl.rewards.core.reward_io import RewardInput, reward_input
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import Question, named
from mmrl_shapeworld.worlds.disjoint_draws import SHARES, checksum_of
from mmrl_shapeworld.worlds.judge_traces import CLOSE, OPEN, SURE, Judge, fitting, listed, trace
from mmrl_shapeworld.worlds.picture_pairs import DIMENSIONS, PicturePair, sample_pair
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.vlm import build_optimizers, with_new_words
from tools.shapeworld_pretrain.vlm_batches import look, to_patches
from tools.shapeworld_pretrain.vlm_hints import Hints, targets

PAIRS = 20
"""Pairs of a step."""
STRESSED = 0.25
"""The share of pairs with a stressed caption."""
WITH_CAPTION = 3
"""Rows with a caption about each pair."""
THINKS = 0.8
"""The share of rows with a caption that have whole thoughts."""
BASE = Judge({"number": 0.3, "size": 0.2, "colour": 0.12, "shape": 0.25, "place": 0.12}, 0.3, 0.2)
"""The careless judge of the last part of the training, if there is one."""
REGION_NAMES = tuple(named(kind) for kind in KINDS)


@dataclass(frozen=True)
class JudgeRow:
    """A prompt about a pair, in the order of its pictures, and an answer."""

    pair: int
    better_first: bool
    prompt: str
    answer: str


def draw_pair(rng: np.random.Generator) -> PicturePair:
    """Return a pair whose checksum is that of training data."""
    while True:
        pair = sample_pair(rng, str(rng.choice(DIMENSIONS)), bool(rng.random() < STRESSED))
        if checksum_of(pair) % 8 in SHARES["train"]:
            return pair


def rows_about(number: int, pair: PicturePair, rng: np.random.Generator, judge: Judge) -> list[JudgeRow]:
    """Return a row of readings of one to three dimensions, and rows with the caption."""
    rows = []
    for kind in ("reads", *("caption",) * WITH_CAPTION):
        better_first = bool(rng.random() < 0.5)
        pictures = (pair.better, pair.worse) if better_first else (pair.worse, pair.better)
        order = (pair.dimension,) if pair.stressed else ()
        if kind == "reads":
            wanted = [str(each) for each in rng.permutation(DIMENSIONS)[: rng.integers(1, 4)]]
            prompt, answer = " ".join(wanted), listed(Judge(judge.misread).readings(wanted, *pictures, rng))
        elif rng.random() < THINKS:
            prompt, answer = pair.prompt, trace(judge, pair.caption, pictures, rng, order=order)
        else:
            seen = fitting(SURE.readings(DIMENSIONS, *pictures, rng), pair.caption)
            verdict = Judge(contradicts=judge.contradicts).verdict(seen, order, rng)
            prompt, answer = pair.prompt, f"{OPEN}{CLOSE}{verdict}"
        rows.append(JudgeRow(number, better_first, prompt, answer))
    return rows


def kind_of(row: JudgeRow) -> str:
    """Return the name of what a row teaches, for the log."""
    if row.answer.startswith(f"{OPEN}{CLOSE}"):
        return "direct"
    return "thoughts" if row.answer.startswith(OPEN) else "reads"


class JudgeRows:
    """Batches of rows, as the processor would make them."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor) -> None:
        self.model, self.words = model, processor.tokenizer
        content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "?"}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        blank = Image.new("RGB", (PIXELS, PIXELS))
        inputs = processor(text=[text], images=[blank, blank], return_tensors="pt")
        ids, mark = inputs["input_ids"][0].tolist(), self.words.convert_tokens_to_ids("?")
        at = ids.index(mark)
        self.before, self.after, self.grid = ids[:at], ids[at + 1 :], inputs["image_grid_thw"]

    def losses(self, pairs: Sequence[PicturePair], rows: Sequence[JudgeRow], hints: Hints) -> tuple[Tensor, Tensor]:
        """Return the loss of the answer of each row [B], and the mean loss of the hints."""
        ids, learnt = self.token_ids(rows)
        types = (ids == self.model.config.image_token_id).int()
        positions, _ = self.model.model.get_rope_index(ids, types, image_grid_thw=self.grid.repeat(len(rows), 1))
        seen, hint = self._seen(pairs, rows, hints)
        states = self.model.model(
            input_ids=ids, position_ids=positions, mm_encoder_outputs={"image": seen}, use_cache=False
        ).last_hidden_state
        is_answer = learnt[:, 1:]
        found = F.cross_entropy(self.model.lm_head(states[:, :-1][is_answer]), ids[:, 1:][is_answer], reduction="none")
        at = is_answer.nonzero()[:, 0]
        return torch.zeros(len(rows)).index_add(0, at, found) / is_answer.sum(1).sqrt(), hint

    def _seen(
        self, pairs: Sequence[PicturePair], rows: Sequence[JudgeRow], hints: Hints
    ) -> tuple[BaseModelOutputWithDeepstackFeatures, Tensor]:
        """Return the features of both pictures of each row, and the mean loss of the hints; a picture is seen once."""
        pictures = [picture for pair in pairs for picture in pair.pictures()]
        seen = look(self.model.model.visual, to_patches([(picture,) for picture in pictures]))
        questions = [Question("", "", "", "", (), {}, (things,)) for pair in pairs for things in pair.regions()]
        hint = hints(seen.pooler_output[0], *targets(questions, REGION_NAMES))
        places = [2 * row.pair + (n if row.better_first else 1 - n) for row in rows for n in (0, 1)]

        def taken(features: Tensor) -> Tensor:
            return features.unflatten(0, (len(pictures), -1))[places].flatten(0, 1)

        return BaseModelOutputWithDeepstackFeatures(
            pooler_output=tuple(taken(each) for each in seen.pooler_output),
            deepstack_features=[tuple(taken(each) for each in level) for level in seen.deepstack_features],
        ), hint

    def token_ids(self, rows: Sequence[JudgeRow]) -> tuple[Tensor, Tensor]:  # [B, T] int64, [B, T] bool
        """Return the tokens of prompts and answers, padded behind, and which of them are learnt."""
        end = self.words.eos_token_id
        prompts = [[*self.before, *self.words(row.prompt).input_ids, *self.after] for row in rows]
        answers = [[*self.words(row.answer).input_ids, end] for row in rows]
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        batch = torch.full((len(rows), longest), self.words.pad_token_id)
        learnt = torch.zeros(len(rows), longest, dtype=torch.bool)
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            batch[number, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
            learnt[number, len(prompt) : len(prompt) + len(answer)] = True
        return batch, learnt


def start(source: Path) -> tuple[Qwen3VLForConditionalGeneration, Qwen3VLProcessor]:
    """Return a model with embeddings for the words of judges, new ones if need be, and its processor."""
    processor = vlm_model.processor(words=vlm_model.judge_tokenizer())
    return with_new_words(source, processor), processor


def train(
    folder: Path,
    minutes: float,
    source: Path = VLM_WORLDS,
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
    careless_from: float = 1.1,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `source` is the folder to go on from; `muon` and `adamw` are learning rates, which fall to zero; `careless_from` is
    the share of the time after which answers are the careless judge's, above 1 for none.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(1300 + seed)
    model, processor = start(source)
    processor.save_pretrained(folder)
    batches, hints = JudgeRows(model, processor), Hints(vlm_model.VLMSize().width, REGION_NAMES)
    optimizers = build_optimizers(nn.ModuleList([model, hints]), muon, adamw)
    running: dict[str, float] = {}
    started, step, spent = time.process_time(), 0, 0.0
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent)
        pairs = [draw_pair(rng) for _ in range(PAIRS)]
        judge = BASE if spent > careless_from else SURE
        rows = [row for number, pair in enumerate(pairs) for row in rows_about(number, pair, rng, judge)]
        losses, hint = batches.losses(pairs, rows, hints)
        share = 0.5 * min(1, (step + 1) / 60)  # the layer of the hints is new: it learns before it teaches
        (losses.mean() + share * hint).backward()
        kinds = [kind_of(row) for row in rows]
        for name in set(kinds):
            mean = float(np.mean([loss for kind, loss in zip(kinds, losses.tolist(), strict=True) if kind == name]))
            running[name] = 0.95 * running.get(name, mean) + 0.05 * mean
        running["hints"] = 0.95 * running.get("hints", hint.item()) + 0.05 * hint.item()
        advance(optimizers, model)
        step += 1
        if step % 50 == 0:
            summary = " ".join(f"{name} {value:.3f}" for name, value in running.items())
            print(f"judge step {step} ({spent:.0%}) {summary}", flush=True)
            model.save_pretrained(folder)
    model.eval().save_pretrained(folder)


@torch.no_grad()
def measure(folder: Path, split: str, greedy: bool, beginning: str = "") -> dict[str, float]:
    """Return the means over a split: of verdicts, of both orders together, of thoughts, of tokens.

    `beginning` is forced on every answer.
    """
    part = ModelPartConfig(train=True)
    config = VLMConfig(model=str(folder), device="cpu", train="full", vision=part, connector=part)
    sampling = TokenSamplingConfig(temperature=0.0 if greedy else 1.0, max_new_tokens=40)
    policy = VLMPolicy.from_config(config, sampling, MediaConfig())
    start = RowStart("forced", prefix=beginning) if beginning else None
    items: list[RewardInput] = []
    tokens = 0
    every = samples(split)
    for at in range(0, len(every), 128):
        requests = [RolloutRequest(each, 1, n, start=start) for n, each in enumerate(every[at : at + 128])]
        rollout = policy.rollout(requests, seed=at)
        tokens += sum(map(len, rollout.token_ids or ()))
        items += [
            reward_input(each, text, len(items) + n, each.id)
            for n, (each, text) in enumerate(zip(every[at : at + 128], rollout.media, strict=True))
        ]
    found = {
        name: float(np.nanmean(values))
        for reward in (load("verdict"), load("both_orders"))
        for name, values in reward.score(items).values.items()
    }
    found["thinks"] = sum(";" in str(item.text) for item in items) / len(items)
    return found | {"tokens": tokens / len(items)}


def main() -> None:
    """Train the model, or print its numbers."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "measure"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--source", type=Path, default=VLM_WORLDS, help="folder of the model to go on from")
    parser.add_argument("--careless-from", type=float, default=1.1, help="share of the time on right answers")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "measure":
        for beginning in ("", f"{OPEN}{CLOSE}", f"{OPEN}number"):
            for greedy in (False, True):
                found = measure(args.out, "judge-development", greedy, beginning)
                cells = " | ".join(f"{value:.3f}" for value in found.values())
                print(f"| {'greedy' if greedy else 'T = 1'} {beginning} | {cells} |", *found, flush=True)
        return
    rates = {"muon": 0.015 * args.rate, "adamw": 2e-3 * args.rate}
    train(args.out, args.minutes, args.source, args.seed, careless_from=args.careless_from, **rates)


if __name__ == "__main__":
    main()
