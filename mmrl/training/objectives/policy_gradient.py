"""The clipped policy gradient on group-relative advantages: GRPO for tokens, Flow-GRPO for denoising steps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms import aggregation_weights, clipped_policy_loss, gaussian_mean_distance, velocity_mse
from mmrl.config.algorithm import GRPOConfig
from mmrl.policy import Decisions, Policy, Power, Rollout
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import Gauges


class PolicyGradient:
    """Flow-GRPO (arXiv:2505.05470) on Gaussian decisions; each decision's backward runs inside the replay."""

    needs: ClassVar[frozenset[Power]] = frozenset({Power.LOG_PROBS, Power.MOMENTS})

    def __init__(self, policy: Policy, config: GRPOConfig) -> None:
        self._policy = policy
        self._config = config

    def acting(self) -> AbstractContextManager[None]:
        """The live parameters sample."""
        return nullcontext()

    def accumulate(self, batch: MicroBatch, share: float, seed: int, gauges: Gauges) -> None:
        """Replay the micro-batch's decisions one by one and backpropagate each as soon as it is computed."""
        rollout, config = batch.rollout, self._config
        trained = rollout.mask & batch.scored.to(rollout.mask.device)[:, None]
        weights = share * aggregation_weights(trained, config.aggregate)
        columns = [t for t in range(trained.shape[1]) if bool(trained[:, t].any())]
        reference = self._reference_moments(rollout, columns) if config.kl.coef else {}

        def visit(now: Decisions) -> None:
            here = list(now.columns)
            mask = trained[:, here]
            terms = clipped_policy_loss(
                now.log_probs,
                rollout.log_probs[:, here],
                batch.credit[:, here],
                mask,
                config.clip.low,
                config.clip.high or config.clip.low,
            )
            loss = (weights[:, here] * terms.loss).sum()
            if config.kl.coef:
                distance = torch.stack([self._distance(now, reference[t], k) for k, t in enumerate(here)], dim=1)
                loss = loss + config.kl.coef * (weights[:, here] * distance).sum()
                gauges.mean("kl", distance.detach()[mask].mean().item())
            loss.backward()
            moved = (now.log_probs.detach() - rollout.log_probs[:, here])[mask]
            gauges.mean("loss", loss.item() / share * len(columns))  # loss is one column's part of the mean
            gauges.mean("ratio_mean", terms.ratio[mask].mean().item())
            gauges.maximum("ratio_max", terms.ratio[mask].max().item())
            gauges.mean("clip_fraction", terms.clipped[mask].float().mean().item())
            gauges.maximum("log_prob_change_max", moved.abs().max().item())

        with torch.enable_grad():
            self._policy.replay(rollout, columns, visit)

    def finish_iteration(self, updates: int) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, Tensor]:
        """No state."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """No state."""

    def _reference_moments(self, rollout: Rollout, columns: list[int]) -> dict[int, Tensor]:
        """Per column, what the reference would have done: its mean or its velocity."""
        found: dict[int, Tensor] = {}

        def visit(now: Decisions) -> None:
            for k, t in enumerate(now.columns):
                found[t] = _compared(now, self._config.kl.kind)[:, k].detach()

        with torch.no_grad(), self._policy.reference():
            self._policy.replay(rollout, columns, visit)
        return found

    def _distance(self, now: Decisions, reference: Tensor, k: int) -> Tensor:
        mine = _compared(now, self._config.kl.kind)[:, k]
        if self._config.kl.kind == "velocity_mse":
            return velocity_mse(mine, reference)
        if now.std is None:
            raise ValueError("mean_distance needs decisions with a standard deviation")
        return gaussian_mean_distance(mine, reference, now.std[:, k])


def _compared(now: Decisions, kind: str) -> Tensor:
    """[B, K, ...]; what a penalty compares."""
    compared = now.velocity if kind == "velocity_mse" else now.mean
    if compared is None:
        raise ValueError(f"the policy's replay gave nothing for kl.kind {kind}")
    return compared
