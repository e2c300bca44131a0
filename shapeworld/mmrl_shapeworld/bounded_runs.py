"""An experiment for studies of doubtful rewards: a policy fills holes for a reward model of a few rated pictures.

The policy chooses what it draws into a hole: colour, shape, size, place, and whether something else stands in front.
Its choices depend on the prompt, and are the same in all holes, so that every picture that it may draw is known
beforehand, and gradients are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from mmrl.config.reward_model import RewardTrainingConfig
from mmrl.rewards.learned.error_bound import error_bounds, inverse_precision
from mmrl.rewards.learned.head_training import RatedAnswers, train_score_head
from mmrl.rewards.learned.judge_inputs import picture_features
from mmrl.rewards.learned.score_head import HeadShape
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.inpainting import Hole, judge_hole, sample_hole
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, Thing, draw
from mmrl_shapeworld.shipped_models import CLIP

HOLES = {"development": (41, 12), "validation": (42, 12)}
"""Seed and number of the holes of each set."""
ROOM = 0.36
"""The least side of a hole, as a share of the picture's: a small thing has to be legible."""
SIDES = (0.55, 0.75, 0.95)
"""Sides of the thing, as shares of the hole's shorter side."""
START = ((0.4, 0.2, 0.2, 0.2), (0.5, 0.25, 0.25), (0.3, 0.4, 0.3), (0.6, 0.2, 0.2), (0.9, 0.05, 0.05))
"""The shares of choices before training: the right colour and shape, the first of each, in two of five and in half of
the pictures; one in ten has something in front."""
NOISE = 0.1
"""The standard deviation of a rating's error."""
STEPS, LEARNING_RATE = 200, 0.03


@dataclass(frozen=True)
class Fillings:
    """All pictures of H holes, K of each."""

    features: Tensor
    """[H, K, F]"""
    quality: Tensor
    """[H, K] the rules' score, in [0, 1]."""
    choices: Tensor
    """[H, K, 5] int64"""


def rated_fillings(
    seed: int, on: str, rate: float, rates: Sequence[float], labels: int = 32, shuffled: bool = False
) -> dict[str, Sequence[float]]:
    """Train a reward model on a few rated pictures, and a policy on the reward model, with weights by its error bound.

    Args:
        seed: of the pictures that are rated, and of the reward model.
        on: the holes, development or validation.
        rate: of `algorithm.advantage.trust`; 0: all answers count alike.
        rates: those of all arms. Arms are compared at the highest reward, less a twentieth, that each of them reaches.
        labels: rated pictures, drawn by the policy before training.
        shuffled: the weights are given to other pictures of the hole, so that they say nothing about doubt.

    Returns:
        `quality`: the rules' score at that reward. `last`: after all steps. `reward`: the reward model's score after
        all steps, in deviations from what it was before.
    """
    every = [course(seed, on, labels, each) for each in dict.fromkeys((*rates, rate))]
    own = course(seed, on, labels, rate, shuffled)
    level = 0.95 * min(each[:, 0].max().item() for each in (*every, own))
    reached = int((own[:, 0] >= level).int().argmax())
    return {"quality": [own[reached, 1].item()], "last": [own[-1, 1].item()], "reward": [own[-1, 0].item()]}


@cache
def course(seed: int, on: str, labels: int, rate: float, shuffled: bool = False) -> Tensor:  # [STEPS + 1, 2]
    """Return the mean reward and quality of a policy as it learns from a reward model of a few rated pictures."""
    world = fillings(on)
    chance = torch.Generator().manual_seed(seed)
    start = probabilities(start_logits(), world.choices)
    holes = torch.randint(len(start), (labels,), generator=chance)
    drawn = torch.multinomial(start[holes], 1, generator=chance)[:, 0]
    rated = world.features[holes, drawn]
    ratings = world.quality[holes, drawn] + NOISE * torch.randn(labels, generator=chance)
    settings = RewardTrainingConfig(steps=300, lr=3e-3)
    shape = HeadShape(features=rated.shape[1], hidden=0)
    head = train_score_head(RatedAnswers(rated, ratings[:, None]), shape, settings, seed)
    every = world.features.flatten(0, 1)
    with torch.no_grad():
        scores = head(every)[0].view_as(world.quality)
        bounds = error_bounds(every, inverse_precision(rated, ridge=1.0)).view_as(world.quality)
    mean = (start * scores).sum(1).mean()
    rewards = (scores - mean) / (start * (scores - mean).square()).sum(1).mean().sqrt()
    weights = (-rate * bounds).exp()
    if shuffled:
        weights = weights[:, torch.randperm(rewards.shape[1], generator=chance)]
    return trained(world, rewards, weights)


def trained(world: Fillings, rewards: Tensor, weights: Tensor) -> Tensor:
    """Return [STEPS + 1, 2], the mean reward and quality of the policy as it learns; `rewards`, `weights` [H, K]."""
    logits = [each.requires_grad_() for each in start_logits()]
    optimizer = torch.optim.Adam(logits, lr=LEARNING_RATE)
    course = []
    for _ in range(STEPS + 1):
        chances = probabilities(logits, world.choices)
        with torch.no_grad():
            means = [(chances * values).sum(1) for values in (rewards, world.quality)]
            course.append(torch.stack([mean.mean() for mean in means]))
            advantages = (rewards - means[0][:, None]) * weights
        optimizer.zero_grad()
        torch.autograd.backward(-(chances * advantages).sum(1).mean())
        optimizer.step()
    return torch.stack(course)


def start_logits() -> list[Tensor]:
    """Return the logits of each choice before training."""
    return [torch.tensor(each).log() for each in START]


def probabilities(logits: Sequence[Tensor], choices: Tensor) -> Tensor:  # [H, K, 5] int64; [H, K]
    """Return the probability of each picture."""
    chosen = [each.log_softmax(0)[choices[..., place]] for place, each in enumerate(logits)]
    return torch.stack(chosen).sum(0).exp()


@cache
def fillings(on: str) -> Fillings:
    """Return every picture that a policy may draw into the holes of a set, in about twelve seconds of processor time.

    Raises:
        KeyError: there is no such set.
    """
    seed, count = HOLES[on]
    rng = np.random.default_rng(seed)
    kinds = SEEN_KINDS
    encoder = load_encoder("learned", str(CLIP))
    features: list[Tensor] = []
    quality, choices = [], []
    while len(features) < count:
        hole, _ = sample_hole(rng, kinds)
        x1, y1, x2, y2 = hole.box
        if min(x2 - x1, y2 - y1) < ROOM * 32:
            continue
        every = {each: draw(filled(hole, *each)) for each in product(*(range(len(shares)) for shares in START))}
        features.append(picture_features(encoder, list(every.values()), [str(hole)] * len(every)))
        quality.append([judge_hole(picture, hole).score for picture in every.values()])
        choices.append(list(every))
    return Fillings(torch.stack(features), torch.tensor(quality), torch.tensor(choices))


def filled(hole: Hole, colour: int, shape: int, size: int, place: int, front: int) -> Scene:
    """Return the scene with a thing in the hole: colour and shape are counted from the prompt's own, which are 0."""
    colours, shapes = list(COLOURS), list(SHAPES)
    x1, y1, x2, y2 = (edge / 32 for edge in hole.box)
    room = min(x2 - x1, y2 - y1) - 2 / 32
    side = SIDES[size] * room
    x, y = (x1 + x2) / 2 + (0, 1, -1)[place] * 0.45 * (room - side), (y1 + y2) / 2
    first = colours.index(hole.colour) + colour
    second = shapes.index(hole.shape) + shape
    kind = (colours[first % len(colours)], shapes[second % len(shapes)])
    things = [Thing(*kind, x, y, side)]
    if front == 1:
        things.append(Thing(colours[(first + 1) % len(colours)], kind[1], x, y, side / 2))
    if front == 2:
        things.append(Thing(kind[0], shapes[(second + 1) % len(shapes)], x + side / 4, y - side / 4, side / 2))
    return Scene((*hole.source.things[1:], *things))
