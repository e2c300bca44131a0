"""Answers whose parameters changed while they were written: which wrote what, and its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl.policy import Policy
from mmrl.rollout import Rollout
from mmrl.training.objectives.replay_passes import replayed_log_probs
from mmrl.training.rollouts.behaviour import NewestBehaviour


def version_metrics(rollouts: Sequence[Rollout], now: int) -> dict[str, float]:
    """Return the number of answers that were written by several versions, and that of decisions by the age of theirs.

    `now` is the version that learns. `lag/decisions_of_2` counts decisions that the parameters of two updates ago
    wrote; rollouts without versions are of one.
    """
    interrupted, ages = 0, torch.zeros(0, dtype=torch.long)
    for rollout in rollouts:
        mask = rollout.mask.cpu()
        versions = (
            torch.full(mask.shape, rollout.policy_version) if rollout.versions is None else rollout.versions.cpu()
        )
        first = versions.masked_fill(~mask, torch.iinfo(torch.long).max).amin(1)
        last = versions.masked_fill(~mask, -1).amax(1)
        interrupted += int((first < last).sum())
        ages = torch.cat([ages, now - versions[mask]])
    found = {f"lag/decisions_of_{age}": float((ages == age).sum()) for age in ages.unique().tolist()}
    return {"lag/interrupted": float(interrupted)} | found


@torch.no_grad()
def gap_by_version(sampler: Policy, rollout: Rollout, newest: NewestBehaviour) -> float:
    """Return the largest |log-prob difference| between a rollout and its replay, each decision under the parameters
    that wrote it, as `newest` has them."""
    assert rollout.versions is not None
    gaps = torch.full(rollout.mask.shape, torch.inf, device=rollout.mask.device)  # of a version that is not known
    steps = list(range(rollout.log_probs.shape[1]))
    with newest.each() as behaviours:
        for behaviour in behaviours:
            own = rollout.mask & (rollout.versions == behaviour.version)
            if own.any():
                gap = (replayed_log_probs(sampler, rollout, steps) - rollout.log_probs).abs()
                gaps = torch.where(own, gap, gaps)
    return float(gaps[rollout.mask].max())
