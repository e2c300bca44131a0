"""An experiment for the study of MoCha: a thing of a clip is swapped after more imitation, or after reinforcement.

The generator learnt to swap from pairs of clips of which some leak: the new thing keeps the colour or the shape of the
old one. More imitation learns from further pairs of the same kind. Reinforcement draws clips for swaps without a second
clip, and follows the gradient of two rewards: the similarity of the new thing with its reference picture, and the
distance of what is around it from the source clip. The measure is identity: the share of frames in which the rules see
the new thing as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, lru_cache
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.algorithms.base import NoiseLevelsConfig
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.rewards.core.executor import WeightedReward
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.workflows.train import train
from mmrl_shapeworld.motion import draw_clip
from mmrl_shapeworld.scenes import Scene, draw
from mmrl_shapeworld.swaps import MASKED, Swap, SwapSimilarity, sample_pair, samples

Method = Literal["none", "sft", "rl"]
MEASURES = {name: f"swap_{name}" for name in ("identity", "similarity", "motion", "background_error")}
"""Names of the measures, and of the scores that they are."""
EVALUATION_SEED = 1234
"""The seed of the noise of all clips that are measured."""
CLIPS = 2
"""Clips of each swap in an update of reinforcement; imitation has as many pairs for each."""


def swapped_clips(
    seed: int,
    on: str,
    method: Method = "none",
    all_masks: bool = False,
    iterations: int = 10,
    lr: float = 1e-4,
    groups: int = 16,
    prompts: int = 128,
) -> dict[str, Sequence[float]]:
    """Return what clips show after training.

    Args:
        seed: of the training.
        on: the split that is measured, such as swap-validation.
        method: imitation of further pairs (sft), reinforcement (rl), or none: the generator stays as it ships.
        all_masks: True shows masks in all frames of the clips that are measured, not in one.
        iterations: updates of the generator.
        lr: of its optimizer.
        groups: swaps of an update, of `CLIPS` clips each; imitation has `CLIPS` pairs in the place of each.
        prompts: swaps that are measured, with one clip each.

    Returns:
        Of each clip: `identity`, `similarity`, `motion` and `background_error`; `seconds`: CPU time of the training.
    """
    policy, seconds = _trained(seed, method, iterations, lr, groups) if method != "none" else (loaded(), 0.0)
    split = f"{on}{MASKED}" if all_masks else on
    found = _started(split, prompts) if method == "none" else measured(policy, split, prompts)
    return {**found, "seconds": [seconds]}


def measured(policy: PipelinePolicy, split: str, prompts: int) -> dict[str, list[float]]:
    """Return what the rules say of one clip for each swap, drawn from the same noise for all policies."""
    suite = RewardSuite([WeightedReward(SwapSimilarity())])
    found = evaluate(policy, samples(split)[:prompts], suite, draws=1, batch=1, seed=EVALUATION_SEED)
    suite.close()
    return {name: found.values[score].astype(float).tolist() for name, score in MEASURES.items()}


@cache
def _started(split: str, prompts: int) -> dict[str, list[float]]:
    """Return the measures of the generator before it is trained, which are the same for all seeds."""
    return measured(loaded(), split, prompts)


@lru_cache(maxsize=1)  # arms that differ in what is measured follow one another
def _trained(seed: int, method: Method, iterations: int, lr: float, groups: int) -> tuple[PipelinePolicy, float]:
    """Return a trained generator, and the CPU-seconds that this took."""
    began, policy = time.process_time(), loaded()
    if method == "sft":
        imitate(policy, seed, iterations, lr, groups * CLIPS)
    else:
        with TemporaryDirectory() as place:
            train(
                load_config(
                    "shapes-swap",
                    [
                        f"seed={seed}",
                        "data.validation=null",
                        f"data.groups={groups}",
                        f"data.group_size={CLIPS}",
                        f"optimizer.lr={lr}",
                        f"training={{iterations: {iterations}, save_every: 1000}}",
                        f"run={{dir: '{place}/run', display: quiet, pictures: 0}}",
                    ],
                ),
                policy=policy,
            )
    return policy, time.process_time() - began


def imitate(policy: PipelinePolicy, seed: int, steps: int, lr: float, pairs: int) -> None:
    """Train the generator on new pairs of clips by flow matching, `pairs` of them in each of `steps` updates."""
    algorithm = load_config("shapes-swap", ["algorithm={name: rejection_sft, num_noise_levels: 2}"]).algorithm
    assert isinstance(algorithm, NoiseLevelsConfig)
    objective = VelocityRegression(policy, algorithm)
    parameters = list(policy.parameters_to_train().values())
    optimizer = torch.optim.AdamW(parameters, lr, weight_decay=0.0)
    rng = np.random.default_rng([seed, 1])
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(pairs):
            batch = MicroBatch.of_rows(pair_rollout(policy, *sample_pair(rng)), torch.ones(1))
            objective.backward(batch, 1 / pairs, int(rng.integers(2**31)), MetricAccumulator())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def pair_rollout(policy: PipelinePolicy, swap: Swap, second: tuple[Scene, ...]) -> Rollout:
    """Return a rollout of one row that ends in the second clip of a pair, behind its reference picture."""
    clips = [[draw(Scene((swap.portrait,)))], draw_clip(second)]
    clean = torch.cat([policy.encode([frames]) for frames in clips], dim=2)
    sample = Sample(id="pair", conditions=swap.conditions(), answer=swap.as_dict())
    return policy.rollout_from_latents([sample], [0], clean, [None])


def loaded() -> PipelinePolicy:
    """Return the generator as it ships."""
    config = load_config("shapes-swap")
    policy = build_policy(config.policy, config.sampling, config.media)
    assert isinstance(policy, PipelinePolicy)
    return policy
