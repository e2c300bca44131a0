"""How rewards become advantages."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from mmrl.config.section import Section

AdvantageName = Literal[
    "grpo", "dr_grpo", "rloo", "max_rl", "linear_best_of", "reinforce_pp", "gdpo", "pareto", "running", "branch"
]


class HistoryConfig(Section):
    """What a prompt has earned so far."""

    buffer: PositiveInt = 32
    """How many of its last rewards are remembered."""
    min_count: PositiveInt = 16
    """With fewer than these, its rewards are compared with the batch's."""


class AdvantageConfig(Section):
    """How rewards become advantages."""

    name: AdvantageName = "grpo"
    """max_rl: over the group's mean, as maximum likelihood weighs prompts. linear_best_of: the same for graded rewards.
    running (DDPO): against the last rewards of the same prompt, so that groups may be of one. branch (BranchGRPO):
    of each denoising step, by the mean over all rows that took it, against other steps as late.
    pareto (Parrot, arXiv:2401.05675): of several rewards; a group's answers that no other dominates are learnt from,
    and no others."""
    std: Literal["group", "batch"] = "group"
    """grpo: the spread that divides: of each group, or of the whole batch (Flow-GRPO)."""
    ddof: Literal[0, 1] = 0
    """0: population spread (flow_grpo); 1: sample spread (DanceGRPO, verl-omni, trl)."""
    clip: PositiveFloat | None = None
    """Advantages are limited to [-clip, clip]."""
    extremes_threshold: PositiveFloat | None = None
    """Only the best and the worst of each group, or of each branch of it (`sampling.branch`), are learnt from, and only
    where their advantages lie beyond ±extremes_threshold (B2-DiffuRL)."""
    history: HistoryConfig = HistoryConfig()
    """Of the name running."""


class BestOfConfig(Section):
    """Which answers of a group are imitated."""

    name: Literal["best_of"] = "best_of"
    keep: PositiveInt = 1
    """The so many best of each group."""
    min_value: float | None = None
    """Only answers whose total reward reaches this; unset: the best, however bad (RAFT)."""


class ExponentialConfig(Section):
    """Every answer is imitated, weighed by exp(reward / temperature)."""

    name: Literal["exponential"] = "exponential"
    temperature: PositiveFloat = 1.0
    """Of rewards; the lower, the more the best outweigh the others."""
    normalise: bool = False
    """Divide by the mean weight of a group, so that every prompt counts the same."""
