"""An experiment on what rewards make of two styles: models of several sizes learn both from scratch, then GRPO.

A model is pre-trained on right traces, some of which write the value of each step and others the step in full, in the
same shares for all sizes. It then learns from the numbers that it answers, which say nothing of a style.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from mmrl.build.datasets import load_samples
from mmrl.seeds import stream_seed
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.reasoning.calculations import FAMILIES
from mmrl_shapeworld.reasoning.pretraining import accumulate_gradients, training_calculation
from mmrl_shapeworld.reasoning.traces import Writer, written_trace
from mmrl_shapeworld.reasoning.trained_sums import evaluated, trained_policy, untrained_policy

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

    from mmrl.understanding.vlm_policy import VLMPolicy

FAMILY, BATCH, RISE = "sums", 128, 30
"""Pre-training is on these calculations, with this number of traces a step; learning rates rise in `RISE` steps."""
MUON, ADAMW = 0.02, 3e-3
"""The largest learning rates of the matrices inside blocks, and of all other parameters."""

STYLES = {"concise": re.compile(r"<think>\d+( \d+)*</think>"), "verbose": re.compile(r"<think>[^<]*=[^<]*</think>")}
"""Answers of each style begin so."""


def amplified_styles(
    seed: int,
    width: int,
    iterations: int,
    concise: float = 0.7,
    steps: int = 1000,
    lr: float = 5e-4,
    on: str = "development",
    prompts: int = 512,
) -> dict[str, Sequence[float]]:
    """Answer calculations by a model that was pre-trained on two styles, after some iterations of GRPO.

    Args:
        seed: of pre-training and of GRPO.
        width: of the model's two layers, a multiple of 32.
        iterations: of GRPO; 0: the model as it was pre-trained.
        concise: the share of traces with the values alone; the others have each step in full.
        steps: of pre-training.
        lr: the learning rate of GRPO.
        on: the split of the prompts.
        prompts: how many are answered, once each.

    Returns:
        For each prompt `concise` and `verbose`, 1 for an answer of this style, and `right`, 1 for the right number;
        `dominant`, the share of the style that most answers have.
    """
    with TemporaryDirectory() as folder:
        model = str(Path(folder) / "model")
        pretrained(seed, width, concise, steps).save_pretrained(model)
        reasoner_model.processor().save_pretrained(model)
        settings = [f"policy.model={model}", "sampling.max_new_tokens=48", f"optimizer.lr={lr}", f"seed={seed}"]
        if not iterations:
            return measured(untrained_policy(*settings), on, prompts)
        training = f"training={{iterations: {iterations}, save_every: {iterations}, max_replay_gap: 3.0e-4}}"
        return measured(trained_policy(*settings, training, f"data.path=shapeworld:{FAMILY}-train"), on, prompts)


def measured(policy: VLMPolicy, on: str, prompts: int) -> dict[str, Sequence[float]]:
    """Return the measures of `amplified_styles` for a policy; the noise of its answers is always the same."""
    samples = load_samples(f"shapeworld:{FAMILY}-{on}")[:prompts]
    found = evaluated(policy, samples, batch=prompts, seed=0)
    styles = {
        name: [float(pattern.match(str(answer)) is not None) for answer in found.answers]
        for name, pattern in STYLES.items()
    }
    return styles | {
        "right": found.values["numeric"].astype(float).tolist(),
        "dominant": [max(sum(each) for each in styles.values()) / prompts],
    }


@cache
def pretrained(seed: int, width: int, concise: float, steps: int) -> Qwen3VLForConditionalGeneration:
    """Return a model that was trained from scratch on right traces of both styles, always the same."""
    writer = Writer(direct=0.0, concise=concise)
    rng = np.random.default_rng(stream_seed(seed, "pre-training"))
    words = reasoner_model.tokenizer()
    torch.manual_seed(seed)
    model = vlm_model.build(words, replace(reasoner_model.SIZE, width=width, inner=4 * width))
    language = model.model.language_model
    optimizers = _optimizers(language)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            each, lambda step: min(1.0, (step + 1) / RISE) * min(1.0, 1.25 * (1 - step / steps))
        )
        for each in optimizers
    ]
    model.train()
    for _ in range(steps):
        calculations = [training_calculation(FAMILIES[FAMILY], rng) for _ in range(BATCH)]
        traces = [written_trace(calculation, writer, rng) for calculation in calculations]
        accumulate_gradients(model, words, calculations, traces)
        torch.nn.utils.clip_grad_norm_(language.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model.eval()


def _optimizers(language: nn.Module) -> list[torch.optim.Optimizer]:
    named = dict(language.named_parameters())
    inner = {name for name, each in named.items() if each.ndim == 2 and ("attn" in name or "mlp" in name)}
    others = [each for name, each in named.items() if name not in inner]
    return [
        torch.optim.Muon([named[name] for name in sorted(inner)], MUON, weight_decay=0.0),
        torch.optim.AdamW(others, ADAMW, betas=(0.9, 0.99), weight_decay=0.0),
    ]
