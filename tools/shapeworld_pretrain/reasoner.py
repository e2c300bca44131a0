"""Warm-starts the language models that write traces: first on right traces, then on those of a careless writer.

The loss counts the tokens of traces alone, and calculations are drawn afresh from those that may be in the training
split. Equal seeds and steps make equal weights, on one thread of one machine.

python -m tools.shapeworld_pretrain sums --out DIR    # a few minutes; `remainders` likewise
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Family
from mmrl_shapeworld.reasoning.pretraining import accumulate_gradients, training_calculation
from mmrl_shapeworld.reasoning.traces import CARELESS, CLEAN, Writer, written_trace
from tools.shapeworld_pretrain.steps import advance
from tools.shapeworld_pretrain.vlm import build_optimizers


@dataclass(frozen=True)
class Schedule:
    """The steps of a warm start."""

    steps: int
    careless: Writer
    careless_from: float = 0.7
    """The share of the steps after which traces are the careless writer's."""
    batch: int = 128
    """Traces in one step."""
    muon: float = 0.02
    adamw: float = 3e-3
    """Learning rates, which fall to zero."""
    sharpness: float = 1.0
    """The factor of all logits after the last step: 1.3 is what a temperature of 1 / 1.3 was before."""


SCHEDULES = {
    "sums": Schedule(1000, CARELESS),
    "remainders": Schedule(
        1200,
        Writer(
            direct=0.15,
            concise=0.45,
            step_error=0.03,
            subtraction_error=0.4,
            corrected=0.4,
            second_attempt=0.15,
            answer_slip=0.03,
            direct_error=0.4,
        ),
        careless_from=0.8,
        sharpness=1.3,
    ),
}


def train(family: str, folder: Path, schedule: Schedule | None = None, seed: int = 0) -> None:
    """Train the model of a family, and save it with its processor."""
    torch.manual_seed(seed)
    processor = reasoner_model.processor()
    model = reasoner_model.build(processor.tokenizer)
    fit(model, processor.tokenizer, FAMILIES[family], schedule or SCHEDULES[family], np.random.default_rng(800 + seed))
    processor.save_pretrained(folder)
    model.save_pretrained(folder)


def fit(
    model: Qwen3VLForConditionalGeneration,
    words: PreTrainedTokenizerFast,
    family: Family,
    schedule: Schedule,
    rng: np.random.Generator,
) -> None:
    """Minimise the negative log-likelihood of traces for a number of steps."""
    language = model.model.language_model
    optimizers = build_optimizers(language, schedule.muon, schedule.adamw)
    model.train()
    for step in range(schedule.steps):
        spent = step / schedule.steps
        rate = min(1.0, (step + 1) / 30) * min(1.0, 1.25 * (1 - spent))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
        writer = schedule.careless if spent >= schedule.careless_from else replace(
            CLEAN, direct=schedule.careless.direct, concise=schedule.careless.concise
        )  # fmt: skip
        calculations = [training_calculation(family, rng) for _ in range(schedule.batch)]
        traces = [written_trace(calculation, writer, rng) for calculation in calculations]
        loss = accumulate_gradients(model, words, calculations, traces)
        advance(optimizers, language)
        if (step + 1) % 100 == 0:
            print(f"{family.name} step {step + 1} of {schedule.steps} loss {loss:.3f}", flush=True)
    with torch.no_grad():
        language.norm.weight *= schedule.sharpness
    model.eval()
