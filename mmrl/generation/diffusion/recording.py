"""What a rollout leaves behind for its replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.branching import BranchTrees
from mmrl.generation.diffusion.denoiser_hook import GuidanceState
from mmrl.generation.diffusion.replay_cache import CallCache
from mmrl.generation.diffusion.transitions import Level, Transition


@dataclass
class Recording:
    """One rollout of a pipeline, as its replays need it. Steps count from the loop's first."""

    arguments: dict[str, Any]  # of the pipeline's call, without generators
    seed: int
    rows: int
    shared_seed: int  # decides the window: equal for all calls of an iteration
    branches: BranchTrees  # which rows go together, and until when
    iteration: int = 0  # of training: a window may move with it
    keep_means: bool = False  # whether the means of decisions are kept beside what was drawn
    guidance_scale: float | None = None  # of guiders, where the call takes none
    call_cache: CallCache = field(default_factory=CallCache)
    transition: Transition | None = None  # None: the scheduler's own step
    decisions: tuple[int, ...] = ()  # the step behind each column
    next_latents: list[list[Tensor]] = field(default_factory=list)  # per step what each scheduler returned, up to the
    # last step that is replayed; there are two schedulers where sound comes with the picture
    keeps_latents: bool = False  # next_latents has every step
    guidance: list[GuidanceState] = field(default_factory=list)  # what guiders remembered after each step
    output_specs: list[list[Any]] = field(default_factory=list)  # per step and denoiser call, the shape of the answer
    first_index: int = 0  # the step of the schedule that the loop took first: `strength` leaves out those before
    num_schedules: int = 1  # a pipeline that draws section by section sets one for each
    branch_specs: list[Any] = field(default_factory=list)  # in the order of calls: the shapes of their answers
    probe: tuple[int, list[Tensor]] | None = None  # a step and its model outputs, if there are no decisions to compare

    def output_spec(self, step: int, call: int) -> Any:
        """The shape of a denoiser's answer; for calls that the rollout did not make, that of its first."""
        answers = self.output_specs[step] if step < len(self.output_specs) else []
        return answers[call] if call < len(answers) else self.output_specs[0][0]


# Latents that are denoised together, each by a scheduler of its own: LTX-2's picture and sound.
#
# To the policy they are one: laid end to end, [B, N1 + N2]. A single part keeps its shape.


def join(parts: Sequence[Tensor]) -> Tensor:  # [B, ...] each
    """One part as it is; several as [B, N]."""
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)


def split(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts again, in the shapes of `like`."""
    if len(like) == 1:
        return [joined]
    pieces = joined.split([part[0].numel() for part in like], dim=1)
    return [piece.reshape(part.shape) for piece, part in zip(pieces, like, strict=True)]


def join_log_probs(log_probs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:  # [B] each -> [B]
    """The mean over all latent dimensions from the mean over those of each part, and how many they are."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([each * size for each, size in zip(log_probs, sizes, strict=True)]).sum(0) / sum(sizes)


def shared_std(stds: Sequence[Level]) -> Level:
    """The standard deviation of all parts.

    Raises:
        UnsupportedError: they differ.
    """
    if any(std != stds[0] for std in stds):
        raise UnsupportedError(f"latents that are denoised together explore with different noise: {stds}")
    return stds[0]
