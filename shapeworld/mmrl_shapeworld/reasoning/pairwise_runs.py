"""An experiment for studies of pairwise judges: a policy chooses among written answers to sums, for one of two rewards.

The policy has a distribution over 16 answers of the careless writer for each prompt. Each iteration samples four
answers to each of 16 prompts and follows the policy gradient; rewards are compared with those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmrl.config.reward_model import RewardTrainingConfig
from mmrl.rewards.learned.head_training import JudgedPairs, train_pair_head
from mmrl.rewards.learned.pair_features import text_features
from mmrl.rewards.learned.pairwise_head import train_pairwise_head, win_rates
from mmrl.rewards.learned.score_head import HeadShape
from mmrl.rewards.models.text_encoder import TextEncoder
from mmrl_shapeworld.reasoning import answer_pairs
from mmrl_shapeworld.reasoning.answer_pairs import is_right
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.traces import CARELESS, written_trace
from mmrl_shapeworld.shipped_models import REASONERS

PROMPTS, ANSWERS = 64, 16
GROUPS, GROUP_SIZE = 16, 4
ITERATIONS, LEARNING_RATE = 160, 0.2
HIDDEN = 64
Form = Literal["pairwise", "score", "score-group"]


def judged_answers(seed: int, on: str, form: Form, offset: float = 0.0, pairs: int = 512) -> dict[str, Sequence[float]]:
    """Train a judge on pairs of answers, and a policy on its judgements.

    Args:
        seed: of the pairs, the judge, the prompts' offsets and the policy's samples.
        on: the prompts, development or validation.
        form: `pairwise`: the judge sees two answers, and the reward is the mean probability of a win against the others
            that were sampled. `score`: a Bradley-Terry score. `score-group`: that, compared within each prompt alone.
        offset: the standard deviation of a number that is added to all scores of a prompt, in standard deviations of
            the scores. A Bradley-Terry loss is the same with and without it.
        pairs: training pairs.

    Returns:
        `right`: the probability of a right answer after training. `ahead`: how often the judge prefers the right one of
        two answers to a prompt.
    """
    data = training_pairs()
    chance = torch.Generator().manual_seed(seed)
    data = data.select(torch.randperm(len(data), generator=chance)[:pairs])
    features, right = written_answers(on)
    settings = RewardTrainingConfig(steps=200, batch=64)
    with torch.no_grad():
        if form == "pairwise":
            with torch.enable_grad():
                judge = train_pairwise_head(data, HIDDEN, settings, seed)
            scores = torch.stack([win_rates(judge, each) for each in features])
        else:
            with torch.enable_grad():
                judge = train_pair_head(data, HeadShape(features=features.shape[-1], hidden=HIDDEN), settings, seed)
            scores = judge(features.flatten(0, 1))[0].view(right.shape)
            scores = (scores - scores.mean()) / scores.std()
            scores = scores + offset * torch.randn(len(scores), 1, generator=chance)
    logits = torch.zeros(right.shape, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=LEARNING_RATE)
    for _ in range(ITERATIONS):
        rows = torch.randperm(len(right), generator=chance)[:GROUPS]
        drawn = torch.multinomial(logits.detach()[rows].softmax(1), GROUP_SIZE, True, generator=chance)
        if form == "pairwise":
            with torch.no_grad():
                rewards = torch.stack([win_rates(judge, features[r, d]) for r, d in zip(rows, drawn, strict=True)])
        else:
            rewards = scores[rows].gather(1, drawn)
        mean = rewards.mean(1, keepdim=True) if form == "score-group" else rewards.mean()
        advantages = (rewards - mean) / (rewards - mean).square().mean().sqrt().clamp(min=1e-6)
        optimizer.zero_grad()
        chosen = logits[rows].log_softmax(1).gather(1, drawn)
        torch.autograd.backward(-(chosen * advantages).mean())
        optimizer.step()
    return {"right": (logits.detach().softmax(1) * right).sum(1).tolist(), "ahead": [ahead(scores, right)] * len(right)}


def ahead(scores: Tensor, right: Tensor) -> float:  # [N, K] each
    """Return the share of pairs of a right and a wrong answer to a prompt whose right one has the higher score."""
    gaps = (scores[:, :, None] - scores[:, None, :])[right[:, :, None].bool() & ~right[:, None, :].bool()]
    return (gaps > 0).float().mean().item()


@cache
def training_pairs() -> JudgedPairs:
    """Return the pairs of `answer-pairs-train` as features, which compare an answer with the right number."""
    found = answer_pairs.samples("answer-pairs-train")
    encoder, numbers = _encoder(), [str(each.answer) for each in found]
    chosen, rejected = (text_features(encoder, [str(getattr(each, side)) for each in found], numbers)
                        for side in ("chosen", "rejected"))  # fmt: skip
    return JudgedPairs(chosen, rejected, torch.ones(len(found), 1))


@cache
def written_answers(on: str) -> tuple[Tensor, Tensor]:  # [N, K, F] and [N, K]
    """Return the features of the answers that the policy chooses from, and 1 for right ones; each prompt has both."""
    rng = np.random.default_rng((93, len(on)))
    right: list[list[bool]] = []
    texts, numbers = [], []
    for calculation in calculations(f"sums-{on}"):
        own = [written_trace(calculation, CARELESS, rng) for _ in range(ANSWERS)]
        verdicts = [is_right(each, calculation) for each in own]
        if any(verdicts) and not all(verdicts) and len(right) < PROMPTS:
            texts += own
            numbers += [str(calculation.answer)] * ANSWERS
            right.append(verdicts)
    features = text_features(_encoder(), texts, numbers)
    return features.view(PROMPTS, ANSWERS, -1), torch.tensor(right).float()


@cache
def _encoder() -> TextEncoder:
    return TextEncoder(str(REASONERS["sums"]))
