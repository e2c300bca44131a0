"""Tensor maths of reinforcement learning: no model, no sampler, no loop. Imports torch and mmrl.checks, nothing else.

Where it fits: `mmrl.training` composes these into objectives; token and picture policies share them, since a token
and a denoising step are both decisions, [B, T].

    groups          statistics within the groups of trajectories that answer one prompt
    advantages      rewards [B] -> advantages [B] -> [B, T], also of decisions that rows share before they part;
                    negative ones by the success of their group
    task_advantages advantages in a mix of tasks, whose metrics differ
    optimal_baseline  the baseline of least variance, and the signal in a gradient
    several_rewards Pareto selection, channels, and constraints with multipliers
    importance      how much likelier a decision, or its whole trajectory, has become: log-ratios [B, T]
    policy_losses   surrogates, and imitation: terms [B, T] from log-probabilities and advantages
    turn_credit     returns and advantages of the turns of an episode: [B, K] -> [B, T]
    aggregation     how terms become a loss
    whole_groups    losses that compare all answers to a prompt: terms [B] from log-ratios of whole answers
    aligned_groups  credit where a reference answer is in each group beside the policy's own
    outcome_credit  credit of decisions by right and wrong answers, and by their importance
    random_policy_values
                    values of the uniformly random policy: errors [B, T] from log-ratios
    preference      losses on pairs of answers: terms [P] from log-ratios of whole answers
    kl              distance from the reference, for tokens and for flows
    forward_process losses on re-noised samples; the matching error as a stand-in for a log-probability

To add one: a function beside its siblings, shapes on its signature, `check_shapes` at its door, its source in its
docstring; then four tests: by hand, property, every term moves a parameter, negative control.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, get_origin

_MODULES = (
    *("advantages", "aggregation", "forward_process", "groups", "importance", "kl", "policy_losses", "preference"),
    *("aligned_groups", "optimal_baseline", "outcome_credit", "several_rewards", "task_advantages", "turn_credit"),
    *("random_policy_values", "whole_groups"),
)
_HOMES = {
    name: module
    for module in (import_module(f"{__name__}.{each}") for each in _MODULES)
    for name, value in vars(module).items()
    if not name.startswith("_")
    and (getattr(value, "__module__", None) == module.__name__ or get_origin(value) is Literal)
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Return a public function or type of one of the modules."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_HOMES[name], name)
