"""An experiment for studies of steering by logits: sums are answered by a base that reward models of tokens guide.

For each seed, an autoregressive reward model of each rater of `trade_pairs` is trained, once for all arms, and so are
the policies that they are compared with. All start from the base `shapeworld:sums`, with as many pairs or answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

from mmrl.build.datasets import load_samples
from mmrl.understanding.joint_engine import ModelLogits, joint_logits
from mmrl_shapeworld.reasoning.trained_sums import answered, trained_policy, untrained_policy

if TYPE_CHECKING:
    from mmrl.understanding.vlm_policy import VLMPolicy

Learner = Literal["reward_right", "reward_brief", "dpo", "grpo", "sum", "heads"]
PAIRS = ("data.path=shapeworld:trade-pairs-train", "rewards=[]")
LEARNERS: Mapping[Learner, Sequence[str]] = {
    "reward_right": (*PAIRS, "algorithm={name: dpo, reference_free: true, axis: right}"),
    "reward_brief": (*PAIRS, "algorithm={name: dpo, reference_free: true, axis: brief}"),
    "dpo": (*PAIRS, "algorithm={name: dpo, axis: right}"),
    "grpo": ("data.groups=16",),
    "sum": (*PAIRS, "algorithm={name: dpo, axis: sum}"),
    "heads": (*PAIRS, "policy.heads=[right, brief]", "algorithm={name: mah_dpo}"),
}
"""The settings of each learner, laid on the recipe `shapes-reasoning`."""


def steered_answers(
    seed: int,
    on: str,
    right: float = 0.0,
    brief: float = 0.0,
    policy: Literal["base", "dpo", "grpo"] = "base",
    own: float = 1.0,
    iterations: int = 64,
    lr: float = 3e-4,
    beta: float = 0.1,
    prompts: int = 256,
) -> dict[str, Sequence[float]]:
    """Answer sums by a policy that weighted reward models guide.

    Args:
        seed: of the training and of the answers.
        on: the prompts, development or validation.
        right: the weight of the logits of the reward model of right answers.
        brief: the weight of that of short ones.
        policy: the guided one: the base, or a policy that learnt itself, from pairs on the axis `right` or from a rule.
        own: the weight of the policy's logits, an inverse temperature: two models of weight 1 that agree are as sure
            as one of weight 2, so that is what they are compared with.
        iterations: of each training, with 64 pairs, or 128 answers of the policy's own.
        lr: its learning rate.
        beta: of the loss on pairs.
        prompts: how many are answered, once each.

    Returns:
        `right`, 1 for a right answer, and `tokens`, its length.
    """
    settings = (seed, iterations, lr, beta)
    base = _base() if policy == "base" else trained(policy, *settings)
    guides = [ModelLogits(base, own)]
    if right:
        guides.append(ModelLogits(trained("reward_right", *settings), right))
    if brief:
        guides.append(ModelLogits(trained("reward_brief", *settings), brief))
    samples = load_samples(f"shapeworld:sums-{on}")[:prompts]
    with joint_logits(base, guides):
        return answered(base, samples, seed)


def blended_answers(
    seed: int,
    on: str,
    blend: float | None = None,
    own: float = 1.0,
    iterations: int = 64,
    lr: float = 3e-4,
    beta: float = 0.1,
    head_scale: float = 1.0,
    prompts: int = 256,
) -> dict[str, Sequence[float]]:
    """Answer sums by a policy with a head for each rater, or by one that learnt from the sum of what they prefer.

    Args:
        seed: of the training and of the answers.
        on: the prompts, development or validation.
        blend: the weight of the head of right answers; that of short ones has the rest. None: the policy of the sum.
        own: the weight of the logits, an inverse temperature.
        iterations: of each training, with 64 pairs.
        lr: its learning rate.
        beta: of the losses.
        head_scale: the learning rate of the heads is this many times that of the trunk.
        prompts: how many are answered, once each.

    Returns:
        `right`, 1 for a right answer, and `tokens`, its length.
    """
    policy = trained(
        "sum" if blend is None else "heads", seed, iterations, lr, beta, 1.0 if blend is None else head_scale
    )
    samples = load_samples(f"shapeworld:sums-{on}")[:prompts]
    weights = None if blend is None else {"right": blend, "brief": 1 - blend}
    with joint_logits(policy, [ModelLogits(policy, own)]):
        if policy.heads is None:
            return answered(policy, samples, seed)
        with policy.heads.blended(weights):
            return answered(policy, samples, seed)


@cache
def trained(learner: Learner, seed: int, iterations: int, lr: float, beta: float, head_scale: float = 1.0) -> VLMPolicy:
    """Return a policy after its training, always the same."""
    words = [*LEARNERS[learner], f"seed={seed}", f"training.iterations={iterations}", f"optimizer.lr={lr}"]
    if learner == "heads":
        words.append(f"policy.heads_lr_scale={head_scale}")
    if learner != "grpo":
        words += [f"algorithm.beta={beta}", "data.groups=64"]
    return trained_policy(*words)


@cache
def _base() -> VLMPolicy:
    return untrained_policy()
