"""An experiment on zigzag sampling: what taking first steps twice gains, and how far it moves rewards apart.

Nothing is trained. The model of `shapeworld` draws each caption along the ODE, with a zigzag or without, and then two
explored pictures from equal noise, of which the second has the zigzag: the pairs that MVC-ZigAL learns from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy
from mmrl.config.policy import PolicyConfig
from mmrl.config.sampling import BranchConfig, SamplingConfig, TransitionConfig, ZigzagConfig
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import fold_in
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import Verdict, judge

BATCH = 64
"""Captions of one call."""


def zigzag_pictures(
    seed: int, on: str, zigzag: int, steps: int = 8, guidance_scale: float = 3.0, prompts: int = 256
) -> dict[str, Sequence[float]]:
    """Draw captions with a zigzag or without, along the ODE and in explored pairs.

    Args:
        seed: of the pictures' noise, equal for all arms.
        on: the captions, development or validation.
        zigzag: the number of first steps that are taken twice; 0: none.
        steps: of the sampler.
        guidance_scale: of the sampler; the inversion's is 1.
        prompts: how many captions are drawn.

    Returns:
        `total` and `strict`, the checker's partial credit and strict correctness of each picture along the ODE; `gap`,
        the distance of the rewards of each pair, and `gain`, the second's less the first's.
    """
    samples = load_samples(f"shapeworld:{on}")[:prompts]
    plain = SamplingConfig(steps=steps, guidance_scale=guidance_scale, pipeline_args={"max_sequence_length": 1})
    refined = ZigzagConfig(steps=zigzag) if zigzag else None
    pairs = plain.model_copy(
        update={
            "transition": TransitionConfig(name="flow_sde", noise_level=0.7),
            "branch": BranchConfig(at=(0,)),
            "zigzag": refined and refined.model_copy(update={"rows": "alternate"}),
        }
    )
    verdicts = _verdicts(samples, plain.model_copy(update={"zigzag": refined}), 1, seed)
    explored = [each.score for each in _verdicts(samples, pairs, 2, seed)]
    gains = [second - first for first, second in zip(explored[::2], explored[1::2], strict=True)]
    return {
        "total": [each.score for each in verdicts],
        "strict": [float(each.strict) for each in verdicts],
        "gap": [abs(gain) for gain in gains],
        "gain": gains,
    }


@torch.no_grad()
def _verdicts(samples: Sequence[Sample], sampling: SamplingConfig, rows: int, seed: int) -> list[Verdict]:
    """Return the checker's verdicts of `rows` pictures of each caption."""
    found: list[Verdict] = []
    for start in range(0, len(samples), BATCH):
        requests = [
            RolloutRequest(each, rows, group, sampling=sampling)
            for group, each in enumerate(samples[start : start + BATCH])
        ]
        rollout = _policy().rollout(requests, fold_in(seed, start))
        found += [
            judge(media, Caption.from_dict(each.answer))
            for media, each in zip(rollout.media, rollout.samples, strict=True)
        ]
    return found


@cache
def _policy() -> PipelinePolicy:
    policy = build_policy(PolicyConfig(kind="pipeline", model="shapeworld", train="full"), SamplingConfig())
    assert isinstance(policy, PipelinePolicy)
    return policy
