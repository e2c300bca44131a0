"""Helpers of the pipeline tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmrl.generation import PipelinePolicy
from mmrl.rollout import Rollout
from mmrl.seeds import row_generators

CLASSES = ["sd3", "flux", "qwen_image", "wan"]
EVERY = [*CLASSES, "wan22", "sd15"]
EXACT = 1e-6


def assert_untouched(policy: PipelinePolicy) -> None:
    """No attribute or hook of ours is left on a tiny SD3."""
    pipeline = policy.pipeline
    assert "_mmrl_watch" not in vars(pipeline.scheduler)
    assert type(pipeline.scheduler).step.__qualname__ == "FlowMatchEulerDiscreteScheduler.step"
    assert "forward" not in vars(pipeline.transformer) and "forward" not in vars(pipeline.text_encoder)
    assert not pipeline.transformer._forward_pre_hooks
    assert not any(name.startswith(("encode_", "prepare_", "_get_")) for name in vars(pipeline))
    assert "encode" not in vars(pipeline.vae)


def count_denoiser_calls(policy: PipelinePolicy, do: Callable[[], Any]) -> int:
    """Count the computed calls of a denoiser."""
    calls: list[int] = []
    blocks = [
        next(module for path, module in denoiser.named_modules() if path.endswith("blocks.0"))
        for denoiser in policy._denoisers.values()
    ]
    handles = [block.register_forward_hook(lambda *_: calls.append(1)) for block in blocks]
    do()
    for handle in handles:
        handle.remove()
    return len(calls)


def plain_arguments(rollout: Rollout) -> dict[str, Any]:
    """Return the arguments of a plain pipeline call with a rollout's initial noise and latents as output."""
    recording = rollout.recording
    generators = row_generators(recording.seed, recording.branches.roots)
    return {**recording.arguments, "generator": generators, "output_type": "latent"}
