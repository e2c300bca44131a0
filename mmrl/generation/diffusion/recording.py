"""The data that a rollout of a pipeline keeps for its replays.

Some pipelines denoise several latent streams together, each with its own scheduler: LTX-2's video and sound. To the
policy they are one tensor [B, N1 + N2] (`join`, `split`); a single stream keeps its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.decisions import BranchTrees
from mmrl.generation.diffusion.denoiser_hook import GuidanceState
from mmrl.generation.diffusion.replay_cache import CallCache
from mmrl.generation.diffusion.transitions import Level, Transition
from mmrl.generation.diffusion.zigzag import ZigzagSteps


@dataclass
class Recording:
    """The recording of one rollout. Steps count from the first step of the pipeline's loop."""

    arguments: dict[str, Any]  # of the pipeline's call, without generators
    seed: int
    shared_seed: int  # determines the window; equal for all calls of an iteration
    branches: BranchTrees
    iteration: int = 0  # of training; a window may move with it
    zigzag: ZigzagSteps | None = None  # the steps that are taken twice
    keep_means: bool = False  # True: the means of decisions are kept as well
    copies: int = 1  # neighbouring rows that begin with the same noise
    guidance_scale: float | None = None  # of guiders, if the pipeline's call takes none
    call_cache: CallCache = field(default_factory=CallCache)
    transition: Transition | None = None  # None: the scheduler's own step
    decisions: tuple[int, ...] = ()  # the step of each decision
    draws_before: bool = False  # True: the steps before the first decision are drawn with noise as well
    next_latents: list[list[Tensor]] = field(default_factory=list)  # [step][stream]: the output of each scheduler step,
    # up to the last step that can be replayed
    keeps_latents: bool = False  # True: next_latents has every step
    guidance: list[GuidanceState] = field(default_factory=list)  # after each step
    output_specs: list[list[Any]] = field(default_factory=list)  # [step][denoiser call]: the structure of the output
    first_index: int = 0  # the loop's first step in the schedule; `strength` skips those before it
    num_schedules: int = 1  # pipelines that generate in sections set one schedule for each
    branch_specs: list[Any] = field(default_factory=list)  # the structure of each ControlNet output, in call order
    probe: tuple[int, list[Tensor]] | None = None  # a step and its model outputs, for rollouts without decisions

    def draws(self, step: int) -> bool:
        """Return whether a step was drawn with the transition's noise: a decision, or a step before the first."""
        return step in self.decisions or (self.draws_before and step < min(self.decisions, default=0))

    def decision_at(self, step: int) -> int:
        """Return the last decision up to a step; -1 before the first."""
        return sum(each <= step for each in self.decisions) - 1

    def output_spec(self, step: int, call: int) -> Any:
        """Return the structure of a denoiser's output; a call that the rollout did not make has that of its first."""
        specs = self.output_specs[step] if step < len(self.output_specs) else []
        return specs[call] if call < len(specs) else self.output_specs[0][0]


def join(streams: Sequence[Tensor]) -> Tensor:  # [B, ...] each
    """Return a single stream unchanged, several concatenated as [B, N]."""
    return streams[0] if len(streams) == 1 else torch.cat([each.flatten(1) for each in streams], dim=1)


def split(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the streams of a joined tensor, in the shapes of `like`."""
    if len(like) == 1:
        return [joined]
    streams = joined.split([each[0].numel() for each in like], dim=1)
    return [stream.reshape(each.shape) for stream, each in zip(streams, like, strict=True)]


def join_log_probs(log_probs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:  # [B] each -> [B]
    """Return the mean over all latent dimensions from the mean of each stream and its number of dimensions."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([each * size for each, size in zip(log_probs, sizes, strict=True)]).sum(0) / sum(sizes)


def shared_std(stds: Sequence[Level]) -> Level:
    """Return the standard deviation that all streams have in common.

    Raises:
        UnsupportedError: the streams have different ones.
    """
    if any(isinstance(std, Tensor) and std.numel() > 1 for std in stds[1:]):
        raise UnsupportedError("latents that are denoised together have one noise level: set inputs of "
                               "sampling.transition.learned to sigma")  # fmt: skip
    if any(std != stds[0] for std in stds[1:]):
        raise UnsupportedError(f"latents that are denoised together explore with different noise: {stds}")
    return stds[0]
