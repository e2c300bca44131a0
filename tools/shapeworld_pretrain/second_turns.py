"""Teaches the model of sums a second turn, in which it mostly repeats its answer, as large models do.

The loss counts the tokens of both turns. Equal seeds and steps make equal weights, on one thread of one machine.

python -m tools.shapeworld_pretrain second-turns --out DIR    # three minutes
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoProcessor, PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from mmrl_shapeworld.reasoning.calculations import FAMILIES
from mmrl_shapeworld.reasoning.pretraining import training_calculation
from mmrl_shapeworld.reasoning.traces import CARELESS, RETRYING, WAIT, Writer, second_turn, written_trace
from mmrl_shapeworld.shipped_models import REASONERS
from mmrl_shapeworld.vlm_model import CHAT_TEMPLATE
from tools.shapeworld_pretrain.steps import advance
from tools.shapeworld_pretrain.vlm import build_optimizers

STEPS, BATCH, MUON, ADAMW = 600, 128, 0.015, 3e-3
"""Steps, episodes in one step, and learning rates, which fall to zero."""
CARELESS_FROM = 0.65
"""The share of the steps after which episodes are the careless writer's."""
RIGHT = (Writer(direct=0.2, concise=0.4, direct_error=0.5), Writer(direct=0.0, concise=0.5, repeated=0.2))
"""The writers of the two turns before: only direct answers are wrong."""


def train(folder: Path, start: Path = REASONERS["sums"], steps: int = STEPS, seed: int = 0) -> None:
    """Train from the model in `start`, and save the new one with its processor."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(850 + seed)
    processor = AutoProcessor.from_pretrained(start)
    model = Qwen3VLForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
    language = model.model.language_model
    optimizers = build_optimizers(language, MUON, ADAMW)
    model.train()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 20) * (1 - step / steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
        writers = (CARELESS, RETRYING) if step >= CARELESS_FROM * steps else RIGHT
        episodes = [_episode(*writers, rng) for _ in range(BATCH)]
        loss = descend(model, optimizers, batches(processor.tokenizer, episodes))
        if (step + 1) % 40 == 0:
            print(f"second turns: step {step + 1} of {steps} loss {loss:.3f}", flush=True)
    model.eval()
    processor.save_pretrained(folder)
    model.save_pretrained(folder)


def _episode(first: Writer, second: Writer, rng: np.random.Generator) -> Sequence[str]:
    calculation = training_calculation(FAMILIES["sums"], rng)
    written = written_trace(calculation, first, rng)
    return str(calculation), written, WAIT, second_turn(written, calculation, second, rng)


def batches(
    words: PreTrainedTokenizerFast, episodes: Sequence[Sequence[str]], count: int = 4
) -> list[tuple[Tensor, Tensor]]:  # ids [B, T] int64, padded behind; own [B, T] bool, the tokens of the turns
    """Return episodes in batches of about equal length: what is read and what is written, alternately."""
    text = words.apply_chat_template(
        [{"role": "user", "content": "@"}, {"role": "assistant", "content": "#"}, {"role": "user", "content": "@"}],
        chat_template=CHAT_TEMPLATE,
        tokenize=False,
        add_generation_prompt=True,
    )
    begin, rest = text.split("@", 1)
    opening, rest = rest.split(f"#{words.eos_token}")
    after = rest.split("@")[0]
    rows = []
    for episode in episodes:
        parts = [
            f"{part}{words.eos_token}" if place % 2 else f"{after if place else begin}{part}{opening}"
            for place, part in enumerate(episode)
        ]
        ids = words(parts)["input_ids"]
        own = [place % 2 == 1 for place, part in enumerate(ids) for _ in part]
        rows.append((torch.tensor([token for part in ids for token in part]), torch.tensor(own)))
    rows.sort(key=lambda row: len(row[0]))
    pad = nn.utils.rnn.pad_sequence
    made = []
    for part in np.array_split(np.arange(len(rows)), count):
        ids = pad([rows[n][0] for n in part], batch_first=True, padding_value=words.pad_token_id)
        made.append((ids, pad([rows[n][1] for n in part], batch_first=True)))
    return made


def descend(
    model: Qwen3VLForConditionalGeneration,
    optimizers: Sequence[torch.optim.Optimizer],
    episodes: Sequence[tuple[Tensor, Tensor]],
) -> float:
    """Take a step on batches of episodes, and return the loss: the mean over the tokens of turns, in nats."""
    language = model.model.language_model
    total, tokens = 0.0, 0
    for ids, own in episodes:
        loss, count = loss_of(model, ids, own)
        loss.backward()
        total, tokens = total + loss.item(), tokens + count
    for parameter in language.parameters():
        if parameter.grad is not None:
            parameter.grad /= tokens
    advance(optimizers, language)
    return total / tokens


def loss_of(model: Qwen3VLForConditionalGeneration, ids: Tensor, own: Tensor) -> tuple[Tensor, int]:
    """Return the summed negative log-likelihood of the tokens of the turns, in nats, and their number."""
    language = model.model.language_model
    states = language(inputs_embeds=language.embed_tokens(ids), use_cache=False).last_hidden_state
    logits = model.lm_head(states[:, :-1][own[:, 1:]])
    return F.cross_entropy(logits, ids[:, 1:][own[:, 1:]], reduction="sum"), len(logits)
