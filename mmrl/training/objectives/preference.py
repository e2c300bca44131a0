"""Learning from pairs of texts: DPO, IPO, BCO, KTO and MPO. Of pictures: `velocity_losses`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms import sequence_log_ratio
from mmrl.config.algorithm import DPOConfig, MPOConfig
from mmrl.policy import Policy, Power
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import Gauges
from mmrl.training.objectives.pair_terms import PairTerms
from mmrl.training.replays import backpropagate_coupled, replayed_log_probs

TEXT_BETA = 0.1
"""DPO's beta where none is set: trl's."""


class PreferenceLearning:
    """Makes chosen answers likelier than rejected ones, compared with the reference.

    Rows 2i and 2i + 1 of a micro-batch are a pair of one group: chosen, rejected. A pair of which one could not be
    used (`scored` False) is left out.
    """

    needs: ClassVar[frozenset[Power]] = frozenset({Power.LOG_PROBS, Power.TEACHER_FORCE})

    def __init__(self, policy: Policy, config: DPOConfig | MPOConfig) -> None:
        self._policy = policy
        self._config = config
        self._pair_terms = PairTerms(config, config.beta or TEXT_BETA)

    def acting(self) -> AbstractContextManager[None]:
        """Nothing is sampled."""
        return nullcontext()

    def amount(self, batch: MicroBatch) -> float:
        """Pairs."""
        return int(_pairs(batch).sum())

    def accumulate(self, batch: MicroBatch, share: float, seed: int, gauges: Gauges) -> None:
        """Replay both answers of all pairs, under the reference and under the policy."""
        rollout, pairs = batch.rollout, _pairs(batch).to(batch.rollout.mask.device)
        mask = rollout.mask & pairs.repeat_interleave(2)[:, None]
        columns = mask.any(0).nonzero()[:, 0].tolist()
        if not columns:
            return
        mask, old = mask[:, columns], rollout.log_probs[:, columns]
        with self._policy.reference():
            reference = replayed_log_probs(self._policy, rollout, columns)

        def loss(log_probs: Tensor) -> Tensor:
            if rollout.policy_version == self._policy.version:
                moved = (log_probs.detach() - old)[mask]
                gauges.maximum("log_prob_change_max", moved.abs().max().item())
            terms = self._terms(log_probs, reference, mask, pairs, gauges)
            gauges.mean("loss", terms.mean().item(), weight=len(terms))
            return share * terms.mean()

        backpropagate_coupled(self._policy, rollout, columns, loss)

    def finish_iteration(self, updates: int) -> None:
        """What rewards are usual is known now."""
        self._pair_terms.settle()

    def state_dict(self) -> dict[str, Tensor]:
        """The usual reward, which BCO and KTO judge answers by."""
        return self._pair_terms.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._pair_terms.load_state_dict(state)

    def _terms(self, log_probs: Tensor, reference: Tensor, mask: Tensor, pairs: Tensor, gauges: Gauges) -> Tensor:
        """[P] of the pairs that are left."""
        ratio = partial(sequence_log_ratio, log_probs, reference, mask)
        (chosen, rejected), per_token = (_sides(ratio(mean=mean), pairs) for mean in (False, True))
        written = None
        if isinstance(self._config, MPOConfig):
            written, _ = _sides(sequence_log_ratio(log_probs, torch.zeros_like(log_probs), mask, mean=True), pairs)
        return self._pair_terms(chosen, rejected, gauges, per_token, written)


def _sides(values: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """[B] of rows side by side -> [P], [P] of the chosen and of the rejected, without pairs that are left out."""
    return values[0::2][pairs], values[1::2][pairs]


def _pairs(batch: MicroBatch) -> Tensor:
    """[P] bool: whether both answers of a pair are there and can be used.

    Raises:
        ValueError: the rows are no pairs.
    """
    groups, usable = batch.rollout.group_index, batch.scored
    if len(groups) % 2 or not torch.equal(groups[0::2], groups[1::2]):
        raise ValueError("preference learning takes rows in pairs of one group, chosen then rejected")
    usable = usable.to(batch.rollout.mask.device) & batch.rollout.mask.any(1)
    return usable[0::2] & usable[1::2]
