"""An experiment on pruned denoisers: what is left of the pictures when a fifth of the weights is removed.

The model of `shapeworld` loses hidden units of its feed-forward layers, which have two fifths of its weights. Arms
differ in which units go. Nothing is trained afterwards, and each picture is compared with that of the whole model for
the same prompt and noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.pruned_units import (
    GateSettings,
    HiddenUnitGates,
    feed_forwards,
    learn_gates,
    most_important,
    remove_hidden_units,
    weight_norms,
)
from mmrl.policy import BackpropSteps, RolloutRequest
from mmrl.seeds import fold_in
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge

Choice = Literal["whole", "end_to_end", "one_step", "magnitude", "random"]
CALIBRATION = 100
"""The prompts by which gates are learnt."""


def pruned_pictures(
    seed: int,
    on: str,
    units: Choice,
    removed: float = 0.2,
    updates: int = 100,
    lr: float = 0.1,
    sparsity: float = 0.02,
    prompts: int = 256,
) -> dict[str, Sequence[float]]:
    """Remove hidden units of the denoiser, and compare its pictures with those of the whole one.

    Args:
        seed: of the gates, of a random choice and of the pictures' noise.
        on: the prompts, development or validation.
        units: which go. `end_to_end`: those whose gates are learnt to close, through all steps of the sampler.
            `one_step`: the same, but through one random step and the picture that it predicts, with as many updates.
            `magnitude`: those with the smallest weights. `random`: any. `whole`: none.
        removed: the share of the denoiser's weights.
        updates: of the gates, eight pictures each.
        lr: the learning rate of the gates.
        sparsity: the weight of the share of open gates.
        prompts: how many pictures are drawn.

    Returns:
        `total`, the reward of each picture, and `difference`, the root mean square of its pixels, in [0, 1], less those
        of the whole model's picture.
    """
    policy = _policy()
    samples = load_samples(f"shapeworld:{on}")[:prompts]
    before = _drawn(policy, samples, seed)
    if units != "whole":
        _prune(policy, seed, units, removed, GateSettings(updates, lr=lr, sparsity=sparsity, seed=seed))
    after = _drawn(policy, samples, seed)
    verdicts = [judge(image, Caption.from_dict(each.answer)) for image, each in zip(after, samples, strict=True)]
    gaps = [_pixels(one) - _pixels(two) for one, two in zip(before, after, strict=True)]
    return {
        "total": [verdict.score for verdict in verdicts],
        "difference": [float(np.sqrt(np.square(gap).mean())) for gap in gaps],
    }


def _prune(policy: PipelinePolicy, seed: int, units: Choice, removed: float, settings: GateSettings) -> None:
    denoiser = find_denoisers(policy.pipeline)["transformer"]
    weights = sum(each.numel() for each in denoiser.parameters() if not each.requires_grad)
    in_units = sum(each.numel() for layer in feed_forwards(denoiser).values() for each in layer.parameters())
    share = 1 - removed * weights / in_units
    if units == "magnitude":
        kept = most_important(weight_norms(denoiser), share)
    elif units == "random":
        chance = torch.Generator().manual_seed(seed)
        kept = most_important(
            {name: torch.rand(len(each), generator=chance) for name, each in weight_norms(denoiser).items()}, share
        )
    else:
        gates = HiddenUnitGates(denoiser)
        if units == "one_step":
            settings = GateSettings(settings.updates, settings.rows, settings.lr, settings.sparsity, seed, _one_step)
        learn_gates(policy, gates, load_samples("shapeworld:train")[:CALIBRATION], settings)
        kept = gates.kept(share)
    remove_hidden_units(denoiser, kept)


def _one_step(rng: np.random.Generator) -> BackpropSteps:
    return BackpropSteps(1, num_skipped_last=int(rng.integers(10)))


def _policy() -> PipelinePolicy:
    config = load_config("quickstart", ["policy.train=lora", "policy.lora={rank: 1, alpha: 1}"])
    policy = build_policy(config.policy, config.sampling)
    assert isinstance(policy, PipelinePolicy)
    return policy


def _drawn(policy: PipelinePolicy, samples: Sequence[Sample], seed: int, batch: int = 64) -> list[Image.Image]:
    found: list[Image.Image] = []
    for first in range(0, len(samples), batch):
        requests = [RolloutRequest(each, 1, group) for group, each in enumerate(samples[first : first + batch])]
        found += policy.rollout(requests, fold_in(seed, first)).media
    return found


def _pixels(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image, dtype=np.float64) / 255
