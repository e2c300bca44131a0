"""Half precision: what stays float32, how near a replay comes, and what loss scaling saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.config.policy import LoraConfig
from mmrl.config.training import MAX_REPLAY_GAP
from mmrl.data.sample import Sample
from mmrl.generation import PipelinePolicy
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.replay_cache import CachedCall, CallCache
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.loss_scale import LossScale
from tests.device import DEVICE
from tests.generation import tiny_pipelines as tiny

CLASSES = ["sd3", "flux", "qwen_image", "wan", "wan22", "sd15"]  # joint, packed, two-stream, video, two models, UNet
PRECISIONS = list(MAX_REPLAY_GAP)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),  # torch: a slower kernel
]


def make(name: str, precision: str, train: str = "lora", **sampling) -> PipelinePolicy:
    """Equal weights in every precision: those of float16, so that what differs is the arithmetic."""
    torch.manual_seed(0)
    pipeline = tiny.build(name).to(torch.float16).to(getattr(torch, precision)).to(DEVICE)
    policy = PipelinePolicy(pipeline, tiny.sampling(name, **sampling), train=train, lora=LoraConfig(rank=4, alpha=8))
    if train == "lora":
        with torch.no_grad():  # adapters begin at zero, where half of their gradients are
            for parameter in policy.parameters_to_train().values():
                parameter += 0.05 * torch.randn(parameter.shape).to(parameter)
    return policy


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_replay_gap_is_within_the_bound_of_its_precision(name, precision, requests):
    policy = make(name, precision)
    rollout = policy.rollout(requests, seed=3)
    assert rollout.log_probs.dtype == torch.float32 and rollout.log_probs.isfinite().all()
    assert policy.replay_gap(rollout) <= MAX_REPLAY_GAP[precision]


@pytest.mark.parametrize("name", ["sd3", "flux", "wan"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_replay_gap_exceeds_the_bound_after_a_1_percent_weight_change(name, precision, requests):
    policy = make(name, precision, train="full")
    rollout = policy.rollout(requests, seed=3)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter *= 1.01
    assert policy.replay_gap(rollout) > MAX_REPLAY_GAP[precision]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_replay_gap_exceeds_the_bound_in_another_precision(precision, requests):
    """The replay is then *nearer* to the truth, and still not what the rollout did."""
    policy = make("sd3", precision)
    rollout = policy.rollout(requests, seed=3)
    policy.pipeline.transformer.float()
    assert policy.replay_gap(as_float32(rollout)) > MAX_REPLAY_GAP[precision]


@pytest.mark.integration
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_gradients_agree_with_float32(precision, train):
    half, single = make("sd3", precision, train), make("sd3", "float32", train)
    rollout = half.rollout(group(), seed=3)
    assert {parameter.dtype for parameter in half.parameters_to_train().values()} == {torch.float32}
    ours, expected = gradient(half, rollout), gradient(single, as_float32(rollout))
    assert cosine(ours, expected) > 0.99
    assert 0.95 < ours.norm() / expected.norm() < 1.05
    assert cosine(gradient(half, rollout, first=3.0), expected) < 0.99  # the control: another row's advantage


@pytest.mark.integration
def test_loss_scaling_prevents_float16_underflow():
    """A picture of 1024 pixels has a thousand times the latents of this one, each with a thousandth of the gradient."""
    share, scale = 1e-4, LossScale("float16")
    half, single = make("sd3", "float16"), make("sd3", "float32")
    rollout = half.rollout(group(), seed=3)
    expected = gradient(single, as_float32(rollout), share)
    plain = gradient(half, rollout, share)
    scaled = gradient(half, rollout, share * scale.factor) / scale.factor
    assert cosine(scaled, expected) > 0.99
    assert not cosine(plain, expected) > 0.99  # mostly zeros
    assert (plain == 0).float().mean() > 2 * (scaled == 0).float().mean()


def group() -> list[RolloutRequest]:
    return [RolloutRequest(Sample("0", prompt="a red circle"), n=4, group=0)]


def gradient(policy: PipelinePolicy, rollout: Rollout, share: float = 1.0, first: float = 1.0) -> Tensor:
    """Return the gradient of the policy-gradient loss at the first update, as one vector."""
    parameters = policy.parameters_to_train()
    for parameter in parameters.values():
        parameter.grad = None
    weights = share / rollout.log_probs.numel() * torch.tensor([first, -0.5, 0.7, -1.2], device=DEVICE)
    policy.replay(rollout, range(5), lambda now: (-now.log_probs[:, 0] * weights).sum().backward())
    return torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None])


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0).item()


def as_float32(rollout: Rollout) -> Rollout:
    """The same trajectories for a policy that computes in float32."""

    def widen(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    recording = rollout.recording
    entries = [
        CachedCall(each.name, map_leaves(Tensor, widen, each.value), each.generators)
        for each in recording.call_cache.entries
    ]
    latents = [[widen(part) for part in parts] for parts in recording.next_latents]
    return replace(rollout, recording=replace(recording, call_cache=CallCache(entries), next_latents=latents))
