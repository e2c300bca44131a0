"""An experiment on pruned denoisers: what is left of the pictures when a fifth of the weights is removed.

The model of `shapeworld` loses hidden units of its feed-forward layers, which have two fifths of its weights. Arms
differ in which units go. Nothing is trained afterwards, and each picture is compared with that of the whole model for
the same prompt and noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.pruned_units import (
    GateSettings,
    HiddenUnitGates,
    SamplerSteps,
    feed_forwards,
    learn_gates,
    most_important,
    remove_hidden_units,
    weight_norms,
)
from mmrl.policy import BackpropSteps
from mmrl.rollout_request import RolloutRequest
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
    recomputed: bool = True,
    updates: int = 60,
    lr: float = 0.1,
    sparsity: float = 1.0,
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
        recomputed: whether each denoiser call of an update is computed again in its backward pass.
        updates: of the gates, eight pictures each.
        lr: the learning rate of the gates.
        sparsity: the weight of the share of open gates.
        prompts: how many pictures are drawn.

    Returns:
        `total`, the reward of each picture; `difference`, the root mean square of its pixels, in [0, 1], less those of
        the whole model's picture; and `kept`, the MiB that the graph of an update keeps, 0 where no gates are learnt.
    """
    policy = _policy()
    samples = load_samples(f"shapeworld:{on}")[:prompts]
    before = _drawn(policy, samples, seed)
    settings = GateSettings(updates, lr=lr, sparsity=sparsity, seed=seed, steps=_sampler_steps(units, recomputed))
    kept = 0.0
    if units in ("end_to_end", "one_step"):
        kept = _kept_mib(policy, samples[: settings.rows], settings)
    if units != "whole":
        _prune(policy, units, removed, settings)
    after = _drawn(policy, samples, seed)
    verdicts = [judge(image, Caption.from_dict(each.answer)) for image, each in zip(after, samples, strict=True)]
    gaps = [_pixels(one) - _pixels(two) for one, two in zip(before, after, strict=True)]
    return {
        "total": [verdict.score for verdict in verdicts],
        "difference": [float(np.sqrt(np.square(gap).mean())) for gap in gaps],
        "kept": [kept],
    }


def _prune(policy: PipelinePolicy, units: Choice, removed: float, settings: GateSettings) -> None:
    denoiser = find_denoisers(policy.pipeline)["transformer"]
    weights = sum(each.numel() for each in denoiser.parameters() if not each.requires_grad)
    in_units = sum(each.numel() for layer in feed_forwards(denoiser).values() for each in layer.parameters())
    share = 1 - removed * weights / in_units
    if units == "magnitude":
        kept = most_important(weight_norms(denoiser), share)
    elif units == "random":
        chance = torch.Generator().manual_seed(settings.seed)
        kept = most_important(
            {name: torch.rand(len(each), generator=chance) for name, each in weight_norms(denoiser).items()}, share
        )
    else:
        gates = HiddenUnitGates(denoiser)
        learn_gates(policy, gates, load_samples("shapeworld:train")[:CALIBRATION], settings)
        kept = gates.kept(share)
    remove_hidden_units(denoiser, kept)


def _sampler_steps(units: Choice, recomputed: bool) -> SamplerSteps:
    if units == "one_step":
        return lambda rng: BackpropSteps(1, num_skipped_last=int(rng.integers(10)), recomputed=recomputed)
    return lambda rng: BackpropSteps(recomputed=recomputed)


def _kept_mib(policy: PipelinePolicy, samples: Sequence[Sample], settings: GateSettings) -> float:
    """Return the MiB that the graph of an update keeps for its backward pass."""
    gates = HiddenUnitGates(find_denoisers(policy.pipeline)["transformer"])
    gates.draw(torch.Generator().manual_seed(settings.seed))
    with policy.keep_latents(), torch.no_grad():
        rollout = policy.rollout([RolloutRequest(each, 1, group) for group, each in enumerate(samples)], settings.seed)
    with gates.applied(), graph_bytes() as found:
        policy.decode_with_grad(rollout, settings.steps(np.random.default_rng(settings.seed)))
    return sum(found.values()) / 2**20


@contextmanager
def graph_bytes() -> Iterator[dict[int, int]]:
    """While open, collect the bytes of each storage that graphs keep for their backward pass, by its address."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


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
