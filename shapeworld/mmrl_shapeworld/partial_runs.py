"""An experiment for studies of reward models that score half-written pictures of the embedded token generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.reward_model import GoalConfig, RewardTrainingConfig
from mmrl.generation.image_tokens import ImageTokenPolicy
from mmrl.rewards.learned.goal_training import JudgedCourses, train_goal_head
from mmrl.rewards.learned.judge_inputs import picture_features
from mmrl.rewards.learned.score_head import HeadShape
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.image_ar import PATCH
from mmrl_shapeworld.scenes import BACKGROUND
from mmrl_shapeworld.shipped_models import CLIP

ROWS = (2, 4, 6, 8)
"""The rows of codes that are written in each state; the last is the finished picture."""
TRAINING = ("train", 160, 2)
JUDGED = {"development": ("development", 64, 4), "validation": ("validation", 64, 4)}
"""The split of captions, their number, and pictures of each."""
LEAST = 0.1
"""The least difference of the checker's scores in a training pair."""


@dataclass(frozen=True)
class WrittenPictures:
    """The pictures of C captions, N of each, in S states."""

    features: Tensor
    """[C, N, S, F]"""
    score: Tensor
    """[C, N] the checker's score"""
    right: Tensor
    """[C, N] bool"""


def partial_scores(
    seed: int, on: str, weight: float, prune: bool = True, state: int = 2, pairs: int = 40, hidden: int = 128
) -> dict[str, Sequence[float]]:
    """Train a head on pairs of pictures, and ask how well it tells right from wrong ones while they are being written.

    Args:
        seed: of the pairs that are drawn, and of the head.
        on: the pictures that are judged, development or validation.
        weight: of the contrast with goals; 0: finished pictures alone.
        prune: of the four pictures of a caption, only the two that score highest in that state are finished.
        state: the place in ROWS of the state in which pictures are judged.
        pairs: training pairs.
        hidden: units of the hidden layer.

    Returns:
        `auc`: the probability that a right picture has a higher score than a wrong one, in that state. `finished`: the
        same of finished pictures. `quality`: the checker's score of the finished picture that scores highest.
    """
    return goal_scores(pictures(*TRAINING, 0), pictures(*JUDGED[on], 7), seed, weight, prune, state, pairs, hidden)


def goal_scores(
    written: WrittenPictures,
    judged: WrittenPictures,
    seed: int,
    weight: float,
    prune: bool,
    state: int,
    pairs: int,
    hidden: int,
) -> dict[str, Sequence[float]]:
    """Train a head on pairs of the pictures that are `written`, and score those to be `judged`, as `partial_scores`."""
    gap = written.score[:, 0] - written.score[:, 1]
    usable = (gap.abs() >= LEAST).nonzero()[:, 0]
    chance = torch.Generator().manual_seed(seed)
    rows = usable[torch.randperm(len(usable), generator=chance)[:pairs]]
    better = (gap[rows] < 0).long()
    courses = JudgedCourses(written.features[rows, better], written.features[rows, 1 - better])
    shape = HeadShape(features=written.features.shape[-1], hidden=hidden)
    settings = RewardTrainingConfig(steps=150, batch=64)
    head = train_goal_head(courses, shape, settings, GoalConfig(weight=weight), seed)
    with torch.no_grad():
        scores = head(judged.features.flatten(0, 2))[0].view(judged.features.shape[:3])
    half, finished = scores[..., state], scores[..., -1]
    dropped = half.topk(2, dim=1, largest=False).indices
    left = finished.scatter(1, dropped, -torch.inf) if prune else finished
    quality = judged.score.gather(1, left.argmax(1, keepdim=True)).mean().item()
    return {"auc": [auc(half, judged.right)], "finished": [auc(finished, judged.right)], "quality": [quality]}


def auc(scores: Tensor, right: Tensor) -> float:
    """Return the probability that a right answer is scored above a wrong one."""
    above, below = scores[right], scores[~right]
    gaps = above[:, None] - below[None]
    return ((gaps > 0).float() + 0.5 * (gaps == 0).float()).mean().item()


@cache
def pictures(split: str, count: int, each: int, seed: int) -> WrittenPictures:
    """Return pictures of the token generator in their states, always the same."""
    config = load_config("shapes-ar")
    policy = cast(ImageTokenPolicy, build_policy(config.policy, config.sampling))
    samples = splits.samples(split)[:count]
    with torch.no_grad():
        rollout = policy.rollout([RolloutRequest(sample, each, n) for n, sample in enumerate(samples)], seed=seed)
    prompts = [sample.prompt for sample in samples for _ in range(each)]
    answers = [Caption.from_dict(sample.answer) for sample in samples for _ in range(each)]
    verdicts = [judge(media, answer) for media, answer in zip(rollout.media, answers, strict=True)]
    encoder = load_encoder("learned", str(CLIP))
    states = [
        picture_features(encoder, [written_part(media, rows) for media in rollout.media], prompts) for rows in ROWS
    ]
    return WrittenPictures(
        torch.stack(states, dim=1).view(count, each, len(ROWS), -1),
        torch.tensor([verdict.score for verdict in verdicts]).view(count, each),
        torch.tensor([verdict.strict for verdict in verdicts]).view(count, each),
    )


def written_part(picture: Image.Image, rows: int) -> Image.Image:
    """Return a picture of which only the first rows of codes are written; the rest is background."""
    canvas = np.asarray(picture.convert("RGB")).copy()
    canvas[rows * PATCH :] = BACKGROUND
    return Image.fromarray(canvas)
