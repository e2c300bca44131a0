"""Some rows of a recorded rollout, as if they had been sampled by a separate call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmrl.generation.diffusion.pytree import TensorSpec, map_leaves
from mmrl.generation.diffusion.recording import Recording
from mmrl.generation.diffusion.replay_cache import CachedCall, CallCache
from mmrl.rollout import Rollout


def rows_of(rollout: Rollout, rows: Sequence[int]) -> Rollout:
    """The same trajectories in a smaller batch: noise, prompts, log-probabilities and all that replay reads."""
    chosen = list(rows)
    return replace(
        rollout,
        samples=[rollout.samples[row] for row in chosen],
        group_index=rollout.group_index[chosen],
        log_probs=rollout.log_probs[chosen],
        mask=rollout.mask[chosen],
        channel=rollout.channel[chosen],
        media=[rollout.media[row] for row in chosen],
        clean=rollout.clean[chosen],
        recording=_recorded(rollout.recording, chosen),
    )


def _recorded(whole: Recording, chosen: list[int]) -> Recording:
    def cut(tensor: Tensor) -> Tensor:
        return tensor[chosen] if tensor.dim() and len(tensor) == whole.branches.rows else tensor

    def shrink(tree_spec: TensorSpec) -> TensorSpec:  # guidance doubles the denoiser's batch
        rows = tree_spec.shape[0] * len(chosen) // whole.branches.rows
        return replace(tree_spec, shape=torch.Size([rows, *tree_spec.shape[1:]]))

    def states(recorded: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # of the rows' generators, then of torch's own
        return (*(recorded[row] for row in chosen), *recorded[whole.branches.rows :])

    entries = [
        CachedCall(each.name, map_leaves(Tensor, cut, each.value), states(each.generators))
        for each in whole.call_cache.entries
    ]
    arguments = {
        name: [value[row] for row in chosen] if isinstance(value, list) else value
        for name, value in whole.arguments.items()
    }
    return replace(
        whole,
        arguments=arguments,
        branches=replace(whole.branches, rows=len(chosen)),
        call_cache=CallCache(entries),
        next_latents=[[part[chosen] for part in parts] for parts in whole.next_latents],
        output_specs=map_leaves(TensorSpec, shrink, whole.output_specs),
        probe=None if whole.probe is None else (whole.probe[0], [part[chosen] for part in whole.probe[1]]),
    )
