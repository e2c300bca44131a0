"""An experiment for the study of VideoReward: a generator learns from ordered pairs of pictures, or is guided.

Three algorithms learn from the same pairs, which other generators drew before training (`generated_pictures`) and the
rules ordered: DPO from the order, reward-weighted regression from all pictures, and imitation of the better ones (SFT).
Without training, a reward model of noisy latents with two axes, how much of the picture is filled (size) and how far up
that is (height), guides the generator by its gradient, with a weight for each axis (Flow-NRG, arXiv:2501.13918).
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal

import torch
from torch import Tensor

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.algorithms.base import NoiseLevelsConfig
from mmrl.data.media.decode import load_image
from mmrl.data.media.sample_media import answer_images
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.inference import guided_rollout
from mmrl.rewards.learned.learned_latents import LearnedLatentsReward
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.preferences import filled_share, mean_height
from mmrl_shapeworld.splits import samples

Method = Literal["none", "sft", "rwr", "dpo"]
ALGORITHMS: Mapping[Method, str] = {
    "sft": "algorithm={name: rejection_sft, num_noise_levels: 2}",
    "rwr": "algorithm={name: flow_rwr, num_noise_levels: 2}",
    "dpo": "algorithm={name: online_dpo, num_noise_levels: 2}",
}
LEAST = 0.05
"""The least difference of two scores that orders a pair."""
BATCH = 96
"""Pictures that are drawn, or learnt from, at once."""
AVERAGE = 0.9
"""The decay of the moving average of the weights, which is measured."""


@dataclass(frozen=True)
class OrderedPairs:
    """P pairs of pictures of a prompt, of which the first is the better one."""

    samples: Sequence[Sample]
    clean: Tensor  # [P, 2, ...] latents
    scores: Tensor  # [P, 2]


def aligned_pictures(
    seed: int,
    on: str,
    method: Method = "none",
    weights: Mapping[str, float] | None = None,
    prompts: int = 192,
    steps: int = 40,
    pairs: int = 240,
    lr: float = 3e-5,
    beta: float = 100.0,
    temperature: float = 0.2,
) -> dict[str, Sequence[float]]:
    """Return how good the pictures of a generator are after training, or under guidance.

    Args:
        seed: of the pairs, the training and the pictures that are measured.
        on: the captions: development or validation.
        method: what the generator is trained by; none: it is not.
        weights: of the axes of the reward model, by which its gradient guides sampling; None: it does not.
        prompts: that are measured, with one picture each.
        steps: of the optimizer, of 48 pairs each.
        pairs: that are learnt from, drawn by chance from all that are ordered.
        lr: of the optimizer.
        beta: of DPO.
        temperature: of the weights exp(score / temperature), which have a mean of 1.

    Returns:
        Of each prompt's picture: `match`, the checker's partial credit, `strict`, its strict correctness, `size`, the
        share that is filled, and `height`, how far up that is.
    """
    policy = loaded(method, beta)
    if method != "none":
        train(policy, method, subset(ordered_pairs(), pairs, seed), seed, steps, lr, beta, temperature)
    guides = [] if weights is None else [(_guide(tuple(sorted(weights.items()))), 1.0)]
    found: dict[str, list[float]] = {"match": [], "strict": [], "size": [], "height": []}
    chosen = samples(on)[:prompts]
    for start in range(0, len(chosen), BATCH):
        rows = chosen[start : start + BATCH]
        requests = [RolloutRequest(sample, 1, row) for row, sample in enumerate(rows)]
        with torch.no_grad():
            own = 100_000 * seed + start
            rollout = guided_rollout(policy, requests, own, guides) if guides else policy.rollout(requests, own)
        for sample, picture in zip(rows, rollout.media, strict=True):
            verdict = judge(picture, Caption.from_dict(sample.answer))
            found["match"].append(verdict.score)
            found["strict"].append(float(verdict.strict))
            found["size"].append(filled_share(picture))
            found["height"].append(mean_height(picture))
    return dict(found)


def loaded(method: Method, beta: float = 100.0) -> PipelinePolicy:
    """Return the generator as it ships."""
    config = load_config("quickstart", [ALGORITHMS[method]] if method != "none" else [])
    policy = build_policy(config.policy, config.sampling, config.media)
    assert isinstance(policy, PipelinePolicy)
    return policy


@cache
def ordered_pairs() -> OrderedPairs:
    """Return the ordered ones of all pairs of pictures in `generated-train`, encoded for the generator that learns."""
    policy, kept, latents, values = loaded("none"), [], [], []
    for sample in samples("generated-train"):
        pictures = [load_image(path, sample.id) for path in answer_images(sample.demonstration)]
        caption = Caption.from_dict(sample.answer)
        scores = [judge(picture, caption).score for picture in pictures]
        better, worse = (0, 1) if scores[0] >= scores[1] else (1, 0)
        if scores[better] - scores[worse] >= LEAST:
            kept.append(sample)
            latents.append(policy.encode([pictures[better], pictures[worse]]))
            values.append([scores[better], scores[worse]])
    return OrderedPairs(kept, torch.stack(latents), torch.tensor(values))


def subset(every: OrderedPairs, count: int, seed: int) -> OrderedPairs:
    """Return some pairs, drawn by chance."""
    chance = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(every.samples), generator=chance)[:count]
    return OrderedPairs([every.samples[row] for row in rows.tolist()], every.clean[rows], every.scores[rows])


def advantages_of(scores: Tensor, method: Method, temperature: float) -> Tensor:  # [P, 2]
    """Return the weight of each picture: 1 and 0, exponentials with a mean of 1, or the score whose order counts."""
    if method == "sft":
        return torch.tensor([1.0, 0.0]).expand_as(scores)
    if method == "rwr":
        odds = ((scores - scores.max()) / temperature).exp()
        return odds / odds.mean()
    return scores


def train(
    policy: PipelinePolicy,
    method: Method,
    pairs: OrderedPairs,
    seed: int,
    steps: int,
    lr: float,
    beta: float,
    temperature: float,
) -> None:
    """Train the generator on pairs by an objective of the suite; it ends as the moving average of its weights."""
    advantages = advantages_of(pairs.scores, method, temperature)
    override = ALGORITHMS[method].replace("}", f", beta: {beta}}}") if method == "dpo" else ALGORITHMS[method]
    algorithm = load_config("quickstart", [override]).algorithm
    assert isinstance(algorithm, NoiseLevelsConfig)
    objective = VelocityRegression(policy, algorithm)
    parameters = list(policy.parameters_to_train().values())
    averages = [each.detach().clone() for each in parameters]
    optimizer = torch.optim.AdamW(parameters, lr, weight_decay=0.0)
    chance = torch.Generator().manual_seed(seed)
    left: list[Tensor] = []
    for step in range(steps):
        if not left:
            left = list(torch.randperm(len(pairs.samples), generator=chance).split(BATCH // 2))
        rows = left.pop(0)
        batch = MicroBatch.of_rows(_rollout(policy, pairs, rows), advantages[rows].flatten())
        optimizer.zero_grad()
        objective.backward(batch, 1.0, 1000 * seed + step, MetricAccumulator())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        for average, each in zip(averages, parameters, strict=True):
            average.lerp_(each.detach(), 1 - AVERAGE)
    with torch.no_grad():
        for average, each in zip(averages, parameters, strict=True):
            each.copy_(average)


def _rollout(policy: PipelinePolicy, pairs: OrderedPairs, rows: Tensor) -> Rollout:
    own = [pairs.samples[row] for row in rows.tolist() for _ in range(2)]
    groups = torch.arange(len(rows)).repeat_interleave(2).tolist()
    none: list[None] = [None] * len(own)
    return policy.rollout_from_latents(own, groups, pairs.clean[rows].flatten(0, 1), none)


@cache
def reward_model() -> str:
    """Return the folder of the reward model, which is trained once in a process and goes with it."""
    folder = mkdtemp(prefix="shapes-axes-")
    atexit.register(rmtree, folder, ignore_errors=True)
    return str(train_reward(load_reward_recipe("shapes-latent-axes"), Path(folder) / "model").folder)


@cache
def _guide(weights: tuple[tuple[str, float], ...]) -> LearnedLatentsReward:
    return LearnedLatentsReward(reward_model(), weights=dict(weights), device="cpu")
