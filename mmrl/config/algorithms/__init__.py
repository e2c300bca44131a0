"""The `algorithm` sections: what one update minimises. A name selects defaults; every key may be set besides.

policy_gradient    one objective, of which `grpo`, `dapo`, `gspo` and so on are settings
forward_process    regression of velocities: DiffusionNFT, AWM, Flow-RWR
reward_gradient    ascent on differentiable rewards, of which `draft`, `refl` and so on are settings
supervised         imitation of demonstrations, or of the policy's own best answers
preference         preference of a chosen over a rejected answer: DPO, online DPO, MPO
distill            distillation on the policy's own answers, from a model of the run
actor_critic       PPO, whose advantages come from a critic that learns beside the policy
mixture            several of these in one update
whole_groups       losses that see all answers to a prompt together: P3O and PACS
aligned_groups     GRAO, whose groups have a demonstration that is imitated and compared with
outcome_learning   OREAL, with credit by the outcome of an answer and the importance of its tokens
random_policy_valuation  ROVER, whose log-ratios learn the values of a uniformly random policy
stored_answers     A-LoL, on answers in the data that rewards score
decoder_turns      RankE, which trains a generator of image tokens together with the decoder of its codec
drawn_texts        GRPO for a model that writes and one that draws what it wrote, by one reward of the picture

Each section names its objective and states its constraints; `base.OBJECTIVES` has them by name, and
docs/algorithms.md lists them with their papers. All sections can be imported from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = (
    *("advantage", "base", "forward_process", "policy_gradient", "policy_losses", "preference", "reward_gradient"),
    *("supervised", "distill", "mixture", "actor_critic", "decoder_turns", "whole_groups", "aligned_groups"),
    *("stored_answers", "outcome_learning", "random_policy_valuation", "drawn_texts"),
)


def __getattr__(name: str) -> Any:
    """Return the section of this name, of whichever family."""
    for module in _MODULES if name[:1].isupper() else ():
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
