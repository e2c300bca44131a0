"""Tiny policies, alone and divided, and the steps that both take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.config.policy import LoraConfig, ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.distributed.tensor_parts import cut, gather_parts, own_part
from mmrl.distributed.window import Window
from mmrl.generation import PipelinePolicy
from mmrl.policy import StepOutputs
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.generation import tiny_pipelines as tiny
from tests.understanding.media import as_png, picture
from tests.understanding.tiny_vlms import build

PROMPTS = [
    RolloutRequest(Sample("0", prompt="a red circle"), n=2, group=0),
    RolloutRequest(Sample("1", prompt="a big blue square"), n=1, group=7),
]
QUESTIONS = [
    RolloutRequest(Sample("0", prompt="What?", images=(as_png(picture(1)),)), n=2, group=0),
    RolloutRequest(Sample("1", prompt="Two and two?"), n=1, group=7),
]


def generator(train: str, dtype: torch.dtype = torch.float32, **sampling: Any) -> PipelinePolicy:
    """A tiny Stable Diffusion 3; equal arguments give equal weights."""
    torch.manual_seed(0)
    pipeline = tiny.build("sd3").to(dtype)
    return PipelinePolicy(pipeline, tiny.sampling("sd3", **sampling), train=train, lora=LoraConfig(rank=4, alpha=8))


def answerer(train: str, folder: Path, **changes: Any) -> VLMPolicy:
    """A tiny Qwen3-VL from a folder, in which process 0 saves it first."""
    processes.on_main(lambda: folder.exists() or build("qwen3_vl", folder))
    torch.manual_seed(0)
    parts = dict(vision=ModelPartConfig(train=True), connector=ModelPartConfig(train=True))
    settings = dict(model=str(folder), device="cpu", train=train, lora=LoraConfig(rank=2)) | parts
    return VLMPolicy.from_config(VLMConfig(**settings | changes), TokenSamplingConfig(max_new_tokens=6))


def divided(policy: Any) -> Any:
    """The same policy with its parameters divided over the processes."""
    policy.place(Window())
    return policy


@torch.no_grad()
def shake(policy: Any, seed: int = 0) -> None:
    """An update that every parameter feels, equal in all processes."""
    noise = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters_to_train().values():
        own_part(parameter).add_(cut(0.1 * torch.randn(parameter.shape, generator=noise), parameter))


def backward(policy: Any, rollout: Rollout, steps: Sequence[int] | None = None) -> None:
    """Add the gradient of the mean log-probability of a rollout."""

    def visit(now: StepOutputs) -> None:
        (now.log_probs * torch.arange(1, 1 + len(now.log_probs))[:, None]).mean().backward()

    policy.replay(rollout, range(rollout.log_probs.shape[1]) if steps is None else steps, visit)


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference between parameters of two policies, or between their gradients with `gradients`."""
    return furthest(values(ours), values(theirs))


def values(policy: Any) -> dict[str, Tensor]:
    """All trained parameters by name, whole."""
    parameters = policy.parameters_to_train()
    parts = [own_part(parameter) for parameter in parameters.values()]
    return dict(zip(parameters, gather_parts(parts, list(parameters.values())), strict=True))


def gradients(policy: Any) -> dict[str, Tensor]:
    """All gradients by name, whole; without those that are None."""
    found = {name: p.grad for name, p in policy.parameters_to_train().items() if p.grad is not None}
    parts = [own_part(gradient) for gradient in found.values()]
    return dict(zip(found, gather_parts(parts, list(found.values())), strict=True))


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference between tensors of the same names; infinite if the names differ."""
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(((ours[name] - theirs[name]).abs().max().item() for name in ours), default=0.0)


def difference(ours: Rollout, theirs: Rollout) -> float:
    """The largest difference between two rollouts; infinite if they have other tokens."""
    if ours.token_ids != theirs.token_ids or ours.log_probs.shape != theirs.log_probs.shape:
        return float("inf")
    gap = (ours.log_probs - theirs.log_probs).abs().max()
    if ours.clean is not None:
        gap = torch.maximum(gap, (ours.clean - theirs.clean).abs().max())
    return gap.item()
