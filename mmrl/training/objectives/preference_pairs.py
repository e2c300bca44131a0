"""Preference learning on pairs of texts: DPO, IPO, BCO, KTO and MPO. For media see `velocity_losses`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.preference import bco_loss, dpo_loss, ipo_loss, kto_loss, mpo_loss, sequence_log_ratio
from mmrl.config.algorithms.preference import DPOConfig, MPOConfig
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.policy import Capability, Policy
from mmrl.rollout import Rollout
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs
from mmrl.training.objectives.prepared_scores import PreparedScores
from mmrl.training.objectives.replay_passes import backpropagate_coupled, marked_steps, replayed_log_probs

TEXT_BETA = 0.1
"""DPO's beta where none is set: trl's."""


class PreferenceLearning(Objective):
    """A loss that makes chosen answers likelier than rejected ones, relative to the reference.

    Rows 2i and 2i + 1 of a micro-batch are a pair of one group: chosen, rejected. A pair of which one could not be
    used (`scored` False) is left out. With `reference_free` the log-probabilities stand for the reward by themselves,
    as in an autoregressive reward model (GenARM, arXiv:2410.08193, equation 4).
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS, Capability.TEACHER_FORCE})

    def __init__(self, policy: Policy, config: DPOConfig | MPOConfig, reference: NamedModel | None = None) -> None:
        """`reference` is the model that rewards are relative to; None: the policy as training began."""
        self._policy, self._reference = policy, reference
        self._config = config
        self._scores: PreparedScores[Tensor] = PreparedScores([] if reference is None else [reference])
        self._pair_terms = PairTerms(config, config.beta or TEXT_BETA)

    @classmethod
    def build(cls, config: DPOConfig | MPOConfig, inputs: ObjectiveInputs) -> PreferenceLearning:
        """Return the objective with its reference, which may be one of the models of the run."""
        name = getattr(config, "reference", None)
        if name is not None and name not in inputs.models:
            raise ConfigError(f"algorithm.reference: {name} is no model here, as in pretraining: use a stage instead")
        return cls(inputs.policy, config, None if name is None else inputs.models[name])

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of usable pairs."""
        return int(usable_pairs(batch).sum())

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay both answers of all pairs, under the reference and under the policy."""
        rollout, pairs = batch.rollout, usable_pairs(batch).to(batch.rollout.mask.device)
        mask = _decisions_of_pairs(batch)
        step_indices = marked_steps(mask)
        if not step_indices:
            return
        mask, old = mask[:, step_indices], rollout.log_probs[:, step_indices]
        reference = self._scores.get(batch, lambda: self._reference_log_probs(rollout, step_indices))

        def loss(log_probs: Tensor) -> Tensor:
            if rollout.policy_version == self._policy.version:
                moved = (log_probs.detach() - old)[mask]
                metrics.maximum("log_prob_change_max", moved.abs().max().item())
            terms = self._terms(log_probs, reference, mask, pairs, metrics)
            metrics.mean("loss", terms.mean().item(), weight=len(terms))
            return share * terms.mean()

        backpropagate_coupled(self._policy, rollout, step_indices, loss)

    def prepare(self, batches: Sequence[MicroBatch]) -> None:
        """Ask an offloaded reference before the passes."""
        self._scores.prepare(
            batches,
            lambda batch: self._reference_log_probs(batch.rollout, marked_steps(_decisions_of_pairs(batch))),
        )

    def finish_iteration(self, updates: int) -> None:
        """Commit the running mean of rewards, which BCO and KTO compare with."""
        self._pair_terms.commit()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the running mean of rewards, the baseline of BCO and KTO."""
        return self._pair_terms.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._pair_terms.load_state_dict(state)

    def _reference_log_probs(self, rollout: Rollout, steps: Sequence[int]) -> Tensor:
        """Return [B, K] of K decisions, which the rewards of their rows are relative to."""
        if getattr(self._config, "reference_free", False) or not steps:
            return torch.zeros_like(rollout.log_probs[:, steps])
        if self._reference is not None:
            return self._reference.log_probs(rollout, steps)
        with self._policy.reference():
            return replayed_log_probs(self._policy, rollout, steps)

    def _terms(
        self, log_probs: Tensor, reference: Tensor, mask: Tensor, pairs: Tensor, metrics: MetricAccumulator
    ) -> Tensor:
        """Return the terms [P] of the usable pairs."""
        ratio = partial(sequence_log_ratio, log_probs, reference, mask)
        (chosen, rejected), per_token = (_sides(ratio(mean=mean), pairs) for mean in (False, True))
        written = None
        if isinstance(self._config, MPOConfig):
            written, _ = _sides(sequence_log_ratio(log_probs, torch.zeros_like(log_probs), mask, mean=True), pairs)
        return self._pair_terms(chosen, rejected, metrics, per_token, written)


def _sides(values: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """[B] of rows side by side -> [P], [P] of the chosen and of the rejected, without pairs that are left out."""
    return values[0::2][pairs], values[1::2][pairs]


def usable_pairs(batch: MicroBatch) -> Tensor:
    """[P] bool: whether both answers of a pair are there and can be used.

    Raises:
        ValueError: the rows are no pairs.
    """
    groups, usable = batch.rollout.group_index, batch.scored
    if len(groups) % 2 or not torch.equal(groups[0::2], groups[1::2]):
        raise ValueError("preference learning takes rows in pairs of one group, chosen then rejected")
    usable = usable.to(batch.rollout.mask.device) & batch.rollout.mask.any(1)
    return usable[0::2] & usable[1::2]


def _decisions_of_pairs(batch: MicroBatch) -> Tensor:
    """Return [B, T] bool: the decisions of the pairs that can be used."""
    mask = batch.rollout.mask
    return mask & usable_pairs(batch).to(mask.device).repeat_interleave(2)[:, None]


class PairTerms:
    """A loss on pairs of texts or images: from the log-ratios of both answers to terms [P]; keeps a mean of rewards."""

    def __init__(self, config: DPOConfig | MPOConfig, beta: float) -> None:
        self._config, self._beta = config, beta
        self._baseline = _RunningMean()

    def __call__(
        self,
        chosen: Tensor,  # [P] log-ratios, policy to reference
        rejected: Tensor,  # [P]
        metrics: MetricAccumulator,
        per_part: tuple[Tensor, Tensor] | None = None,  # the same per token, [P] each; unset: as they are
        written: Tensor | None = None,  # [P] mean log-probs of the chosen answers, which mpo needs
    ) -> Tensor:
        """Return the terms [P], and remember the rewards for `commit`."""
        config, beta, count = self._config, self._beta, len(chosen)
        rewards = beta * torch.stack([chosen, rejected]).detach()
        self._baseline.update(rewards)
        metrics.mean("reward_chosen", rewards[0].mean().item(), weight=count)
        metrics.mean("reward_rejected", rewards[1].mean().item(), weight=count)
        metrics.mean("preference_accuracy", (rewards[0] > rewards[1]).float().mean().item(), weight=count)
        baseline = self._baseline.value
        if isinstance(config, MPOConfig):
            if written is None:
                raise ValueError("mpo needs the log-probabilities of the chosen answers")
            weights = {name: getattr(config, name) for name in ("preference", "quality", "generation")}
            parts = mpo_loss(chosen, rejected, written, beta, baseline, **weights)
            for name in weights:
                metrics.mean(f"loss_{name}", getattr(parts, name).mean().item(), weight=count)
            return parts.loss
        match config.loss:
            case "sigmoid":
                return dpo_loss(chosen, rejected, beta, config.label_smoothing)
            case "ipo":
                return ipo_loss(*(per_part or (chosen, rejected)), beta)
            case "bco":
                return bco_loss(chosen, rejected, beta, baseline)
            case "kto":
                return kto_loss(chosen, rejected, beta, max(baseline, 0.0))

    def commit(self) -> None:
        """Commit the running mean of rewards once an iteration, so that it does not depend on micro-batches."""
        self._baseline.commit()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the running mean of rewards, the baseline of BCO and KTO."""
        return {"usual_reward": torch.tensor([self._baseline.value, self._baseline.count], dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._baseline = _RunningMean(*state["usual_reward"].tolist())


class _RunningMean:
    """The mean of all values of earlier iterations; 0 before any."""

    def __init__(self, value: float = 0.0, count: float = 0.0) -> None:
        self.value, self.count = value, count
        self._sum, self._new = 0.0, 0

    def update(self, values: Tensor) -> None:
        """Remember values for the next `commit`."""
        self._sum += values.double().sum().item()
        self._new += values.numel()

    def commit(self) -> None:
        """Add the values that all processes remember to the mean."""
        sums, counts = zip(*processes.gather((self._sum, self._new)), strict=True)
        if new := sum(counts):
            self.count += new
            self.value += (sum(sums) - new * self.value) / self.count
        self._sum, self._new = 0.0, 0
