"""Comparisons of the tiny pipelines with divided parameters and whole ones, which two processes make together."""

from __future__ import annotations

from pathlib import Path

import torch

from mmrl.distributed import processes
from mmrl.generation import PipelinePolicy
from tests.distributed import divided_policies as made
from tests.generation import tiny_pipelines as tiny
from tests.generation.pipeline_matrix import STEPS, calls, roll
from tests.generation.representatives import representatives

DAILY = ("wan22", "sd15_inpaint")
"""Two denoisers, and a condition."""


def compare_daily(folder: Path) -> dict[str, dict[str, float]]:
    """The differences of some representatives, by pipeline."""
    return {name: compare(name, folder) for name in DAILY}


def compare_representatives(folder: Path) -> dict[str, dict[str, float]]:
    """The differences of all representatives, by pipeline."""
    return {name: compare(name, folder) for name in sorted(representatives())}


def compare(name: str, folder: Path) -> dict[str, float]:
    """The largest differences of rollouts, replays and summed gradients; each process draws with another seed."""
    own_folder = folder / f"{name}-{processes.rank()}"
    own_folder.mkdir()
    request, sampling = calls(name, tiny.samples(name, own_folder))[0], tiny.sampling(name, steps=STEPS)
    ours, whole = made.divided(build(name)), build(name)
    seeds = range(processes.size())
    theirs = [roll(whole, request, sampling, seed=seed) for seed in seeds]
    with ours.layout.whole():
        drawn = roll(ours, request, sampling, seed=processes.rank())
        gap = ours.replay_gap(drawn)
        made.backward(ours, drawn)
    ours.layout.sum_gradients(ours.parameters_to_train().values())
    for rollout in theirs:
        made.backward(whole, rollout)
    expected = made.gradients(whole)
    largest = max(each.abs().max().item() for each in expected.values())
    return {
        "rollout": made.difference(drawn, theirs[processes.rank()]),
        "replay_gap": gap - whole.replay_gap(theirs[processes.rank()]),
        "gradients": made.furthest(made.gradients(ours), expected) / largest,
    }


def build(name: str) -> PipelinePolicy:
    """A policy of all parameters of a tiny pipeline; equal in all processes."""
    torch.manual_seed(0)
    return PipelinePolicy(tiny.build(name), tiny.sampling(name, steps=STEPS), train="full")
