"""The squared norm of the gradient of each answer's log-probability: exact, or from recorded probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.policy import Policy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.training.objectives.replay_passes import marked_steps


def exact_squared_norms(
    policy: Policy,
    rollouts: Sequence[Rollout],  # of R rows in all
    wanted: Tensor,  # [R] bool
) -> Tensor:  # [R] float32 on the CPU; 0 in rows that are not wanted
    """Return |gradient of the log-probability of a whole answer|^2 in all trained parameters, one pass a row.

    The gradients that the parameters had are lost: call it between updates.
    """
    norms = torch.zeros(len(wanted))
    start = 0
    for rollout in rollouts:
        for row in range(rollout.rows):
            if wanted[start + row]:
                reached = [each for each in answer_gradient(policy, rollout.select([row])) if each is not None]
                norms[start + row] = sum(float(each.double().square().sum()) for each in reached)
        start += rollout.rows
    return norms


def recorded_squared_norms(rollouts: Sequence[Rollout]) -> Tensor:  # [R] float32 on the CPU
    """Return the sum over an answer's tokens of (1 - p)^2, p the probability with which each was drawn.

    The gradient of log p in the logits is 1 - p at the token that was drawn and minus the others' probabilities at
    those, so its squared norm is between (1 - p)^2 and twice that. What the logits' own gradients differ by is left
    out; nothing is computed that the rollout has not recorded.
    """
    return torch.cat([_recorded(each.log_probs, each.mask) for each in rollouts])


def _recorded(log_probs: Tensor, mask: Tensor) -> Tensor:
    return ((1 - log_probs.float().exp()) ** 2).where(mask, 0.0).sum(1).cpu()


def answer_gradient(policy: Policy, answer: Rollout) -> list[Tensor | None]:
    """Return the gradient of an answer's log-probability in each trained parameter; None where it does not reach.

    `answer` has one row. The gradients that the parameters had are lost.
    """
    parameters = list(policy.parameters_to_train().values())

    def visit(now: StepOutputs) -> None:
        mask = answer.mask[:, list(now.step_indices)]
        now.log_probs.where(mask, 0.0).sum().backward()

    for parameter in parameters:
        parameter.grad = None
    with torch.enable_grad():
        policy.replay(answer, marked_steps(answer.mask), visit)
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found
