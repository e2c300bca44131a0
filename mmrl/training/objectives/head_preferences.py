"""MAH-DPO (arXiv:2510.01167): preferences on several axes, each learnt by another head on one trunk."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.preference import dpo_loss, sequence_log_ratio
from mmrl.config.algorithms.preference import MAHDPOConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.objectives.preference_pairs import usable_pairs
from mmrl.training.objectives.replay_passes import backpropagate_coupled, marked_steps, replayed_log_probs
from mmrl.training.rollouts.offline import chosen_on


class HeadPreferences(Objective):
    """The sum over heads of the DPO loss on the axis of their name, as `metadata.axes` of each pair says.

    Rows 2i and 2i + 1 of a micro-batch are the two answers of a pair. The trunk gets the gradients of all heads, a head
    those of the axis with its name. Each head costs a replay; the reference is replayed once.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS, Capability.TEACHER_FORCE})

    def __init__(self, policy: Any, config: MAHDPOConfig) -> None:
        super().__init__(policy, config)
        if getattr(policy, "heads", None) is None:
            raise ConfigError("mah_dpo trains the heads of a policy, and this one has none: set policy.heads")

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of usable pairs."""
        return int(usable_pairs(batch).sum())

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay both answers of all pairs under the reference, and then with each head.

        Raises:
            DataError: a sample does not say which answer is better on an axis.
        """
        rollout, pairs = batch.rollout, usable_pairs(batch).to(batch.rollout.mask.device)
        mask = rollout.mask & pairs.repeat_interleave(2)[:, None]
        step_indices = marked_steps(mask)
        if not step_indices:
            return
        mask = mask[:, step_indices]
        with self._policy.reference():
            reference = replayed_log_probs(self._policy, rollout, step_indices)
        for name in self._policy.heads.weights:
            sign = signs(rollout.samples[0::2], name).to(mask.device)[pairs]

            def loss(log_probs: Tensor, name: str = name, sign: Tensor = sign) -> Tensor:
                ratio = sequence_log_ratio(log_probs, reference, mask)
                margin = sign * (ratio[0::2] - ratio[1::2])[pairs]
                terms = dpo_loss(margin, torch.zeros_like(margin), self._config.beta)
                metrics.mean("loss", terms.mean().item(), weight=len(terms))
                ordered = (margin.detach() > 0).float().mean().item()
                metrics.mean(f"preference_accuracy/{name}", ordered, weight=len(terms))
                return share * terms.mean()

            with self._policy.heads.chosen(name):
                backpropagate_coupled(self._policy, rollout, step_indices, loss)


def signs(samples: list[Sample], axis: str) -> Tensor:  # [P] float32
    """Return 1 where the text under `chosen` is the better one on an axis, and -1 where the other is."""
    return torch.tensor([1.0 if chosen_on(sample, axis) else -1.0 for sample in samples])
