"""Teaches a model to shop: first as an expert does, then as a careless shopper.

The loss counts the tokens of turns, not those of observations. Equal seeds and steps make equal weights, on one thread
of one machine.

python -m tools.shapeworld_pretrain shop --out DIR    # a few minutes
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.shop import shop_model
from mmrl_shapeworld.shop.careless_shopper import CARELESS, EXPERT, Shopper, shop
from mmrl_shapeworld.shop.shop_splits import SENT_BACK, checksum, sample_task
from mmrl_shapeworld.worlds.disjoint_draws import SHARES
from tools.shapeworld_pretrain.second_turns import batches, descend
from tools.shapeworld_pretrain.vlm import build_optimizers

STEPS, BATCH, MUON, ADAMW = 280, 64, 0.02, 3e-3
"""Steps, episodes in one step, and learning rates, which fall to zero."""
CARELESS_FROM = 0.45
"""The share of the steps after which episodes are the careless shopper's."""
LARGE, UNSEEN, REFLECTED = 0.2, 0.15, 0.25
"""The shares of shops with six shelves, of those that want an unseen thing, and of those with a reflector."""


def train(folder: Path, steps: int = STEPS, seed: int = 0, careless: Shopper = CARELESS) -> None:
    """Train the model, and save it with its processor."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(890 + seed)
    processor = shop_model.processor()
    model = reasoner_model.build(processor.tokenizer)
    optimizers = build_optimizers(model.model.language_model, MUON, ADAMW)
    model.train()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 30) * min(1.0, 1.25 * (1 - step / steps))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
        shopper = careless if step >= CARELESS_FROM * steps else EXPERT
        loss = descend(model, optimizers, batches(processor.tokenizer, [_episode(shopper, rng) for _ in range(BATCH)]))
        if (step + 1) % 50 == 0:
            print(f"shop: step {step + 1} of {steps} loss {loss:.3f}", flush=True)
    model.eval()
    processor.save_pretrained(folder)
    model.save_pretrained(folder)


def _episode(shopper: Shopper, rng: np.random.Generator) -> list[str]:
    """Return an episode: what is read and what is written, alternately."""
    shelves = (6,) if rng.random() < LARGE else (4, 5)
    unseen = bool(rng.random() < UNSEEN)
    while checksum(task := sample_task(rng, shelves, unseen)) % 8 not in SHARES["train"]:
        pass
    turns, seen, _ = shop(task, shopper, rng, SENT_BACK if rng.random() < REFLECTED else 0)
    return [text for pair in zip((task.prompt, *seen), turns, strict=True) for text in pair]
