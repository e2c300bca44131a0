"""Teaches a model to call a tool for long calculations: first as a right caller does, then as a careless one.

The loss counts the tokens of turns, not those of results. Equal seeds and steps make equal weights, on one thread of
one machine.

python -m tools.shapeworld_pretrain calls --out DIR    # a few minutes
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.reasoning.calculation_calls import SHORT, CalculationCalls, lengths_of
from mmrl_shapeworld.reasoning.calculations import FAMILIES, part_of, sample_calculation
from mmrl_shapeworld.reasoning.careless_calls import CARELESS_CALLER, RIGHT_CALLER, Caller, written_episode
from tools.shapeworld_pretrain.second_turns import batches, descend
from tools.shapeworld_pretrain.vlm import build_optimizers

STEPS, BATCH, MUON, ADAMW = 600, 96, 0.02, 3e-3
"""Steps, episodes in one step, and learning rates, which fall to zero."""
CARELESS_FROM = 0.6
"""The share of the steps after which episodes are the careless caller's."""


def train(folder: Path, steps: int = STEPS, seed: int = 0, careless: Caller = CARELESS_CALLER) -> None:
    """Train the model, and save it with its processor."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(870 + seed)
    processor = reasoner_model.processor(reasoner_model.CALL_PIECES)
    model = reasoner_model.build(processor.tokenizer)
    optimizers = build_optimizers(model.model.language_model, MUON, ADAMW)
    environment, reader = CalculationCalls(), MediaReader(MediaBudget())
    model.train()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 30) * min(1.0, 1.25 * (1 - step / steps))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
        caller = careless if step >= CARELESS_FROM * steps else RIGHT_CALLER
        episodes = [_episode(number, caller, environment, reader, rng) for number in range(BATCH)]
        loss = descend(model, optimizers, batches(processor.tokenizer, episodes))
        if (step + 1) % 50 == 0:
            print(f"calls: step {step + 1} of {steps} loss {loss:.3f}", flush=True)
    model.eval()
    processor.save_pretrained(folder)
    model.save_pretrained(folder)


def _episode(
    number: int, caller: Caller, environment: CalculationCalls, reader: MediaReader, rng: np.random.Generator
) -> Sequence[str]:
    """Return an episode: what is read and what is written, alternately; short calculations are those of all splits."""
    lengths = lengths_of(number)
    while part_of(calculation := sample_calculation(FAMILIES["sums"], rng, lengths)) != "train" and lengths != SHORT:
        pass
    sample = Sample(id=str(number), prompt=str(calculation), answer=calculation.answer)
    written = written_episode(sample, calculation, caller, environment, reader, rng)
    read = (str(calculation), *written.observations)
    return [text for pair in zip(read, written.turns, strict=True) for text in pair]
