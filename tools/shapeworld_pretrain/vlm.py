"""Warm-starts the embedded VLM on all eight tasks at once: first on right answers, then on a careless annotator's.

Questions are drawn afresh, and the loss counts the tokens of answers alone. Right answers come first because they
teach to look several times faster; the annotator's mistakes (`mmrl_shapeworld.vqa.questions`) come last, and they
are what reinforcement learning has to undo.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.vqa.questions import QUESTIONS
from tools.shapeworld_pretrain.muon import Muon
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.vlm_batches import Batch, BatchBuilder, look
from tools.shapeworld_pretrain.vlm_hints import Hints

GROUPS: tuple[dict[str, int], ...] = (
    {"grounding": 14, "counting": 8, "ocr": 12, "chart": 10, "puzzle": 6},
    {"detection": 8},
    {"video-qa": 8},
    {"math": 6},
)
"""Questions of each task in a step, more where more is needed. A group goes through the model together: its questions
are about equally long and show as many pictures each."""
A_STEP = sum(count for group in GROUPS for count in group.values())


def train(
    folder: Path,
    minutes: float,
    seed: int = 0,
    muon: float = 0.02,
    adamw: float = 3e-3,
    careless_from: float = 0.7,
    start: Path | None = None,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `muon` and `adamw` are learning rates, which fall to zero; `careless_from` is the share of the time after which
    answers are the annotator's; `start` is a folder to go on from instead of a new model.
    """
    torch.manual_seed(seed)
    processor = vlm_model.processor()
    model = (
        vlm_model.build(processor.tokenizer)
        if start is None
        else Qwen3VLForConditionalGeneration.from_pretrained(start)
    )
    processor.save_pretrained(folder)
    fit(model, processor, folder, minutes, np.random.default_rng(700 + seed), muon, adamw, careless_from)
    model.save_pretrained(folder)


def fit(
    model: Qwen3VLForConditionalGeneration,
    processor: Qwen3VLProcessor,
    folder: Path,
    minutes: float,
    rng: np.random.Generator,
    muon: float = 0.02,
    adamw: float = 3e-3,
    careless_from: float = 0.7,
) -> None:
    """Minimise the loss for a number of minutes of processor time, saving as it goes; both rates end at zero."""
    batches = BatchBuilder(model, processor)
    hints = Hints(model.config.text_config.hidden_size)
    optimizers = build_optimizers(nn.ModuleList([model, hints]), muon, adamw)
    started, step, spent = time.process_time(), 0, 0.0
    running: dict[str, float] = {}
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent, rise=50)
        for group in GROUPS:
            tasks = [task for task, count in group.items() for _ in range(count)]
            questions = [QUESTIONS[task](rng) for task in tasks]
            answers = [question.annotated if spent > careless_from else question.right for question in questions]
            losses, hint = losses_of(model, hints, batches.batch(questions, answers))
            ((losses.sum() + hint * len(tasks)) / A_STEP).backward()
            if hint:
                running["hints"] = 0.95 * running.get("hints", hint.item()) + 0.05 * hint.item()
            for task, loss in zip(tasks, losses.tolist(), strict=True):
                running[task] = 0.99 * running.get(task, loss) + 0.01 * loss
        advance(optimizers, model)
        step += 1
        if step % 100 == 0:
            summary = " ".join(f"{task} {loss:.3f}" for task, loss in running.items())
            print(f"vlm step {step} ({spent:.0%}) {summary}", flush=True)
            model.save_pretrained(folder)
    model.eval()


def with_new_words(source: Path, processor: Qwen3VLProcessor) -> Qwen3VLForConditionalGeneration:
    """Return a saved model with embeddings for all words of a processor, new ones near the mean of the others."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(source)
    old = model.get_input_embeddings().num_embeddings
    model.resize_token_embeddings(len(processor.tokenizer), mean_resizing=False)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table[old:] = table[:old].mean(0) + 0.5 * table[:old].std(0) * torch.randn_like(table[old:])
    return model


def build_optimizers(model: nn.Module, muon: float, adamw: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside blocks and mergers, AdamW for all else."""
    named = dict(model.named_parameters())
    inner = {n for n, p in named.items() if p.ndim == 2 and any(k in n for k in ("attn", "mlp", "merger"))}
    optimizers = [
        Muon([named[n] for n in sorted(inner)], lr=muon),
        torch.optim.AdamW(
            [p for n, p in named.items() if n not in inner], lr=adamw, betas=(0.9, 0.99), weight_decay=0.0
        ),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def losses_of(model: Qwen3VLForConditionalGeneration, hints: Hints, batch: Batch) -> tuple[Tensor, Tensor]:  # [B], []
    """Negative log-likelihood of each answer over the square root of its tokens, and the loss of the hints."""
    seen, hint = {}, torch.zeros(())
    if batch.patches is not None and batch.hints is not None:
        kind = "image" if bool((batch.ids == model.config.image_token_id).any()) else "video"
        seen[kind] = look(model.model.visual, batch.patches)
        hint = hints(seen[kind].pooler_output[0], *batch.hints)
    states = model.model(
        input_ids=batch.ids, position_ids=batch.positions, mm_encoder_outputs=seen, use_cache=False
    ).last_hidden_state
    is_answer = batch.answered[:, 1:]
    losses = F.cross_entropy(model.lm_head(states[:, :-1][is_answer]), batch.ids[:, 1:][is_answer], reduction="none")
    rows = is_answer.nonzero()[:, 0]
    return torch.zeros(len(is_answer)).index_add(0, rows, losses) / is_answer.sum(1).sqrt(), hint
