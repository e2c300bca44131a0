"""The parts that policies of language models share: replay, and the reference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from mmrl.policy import Capability, DecisionCallback, LossGradFn, ReferencePolicy, Rollout, StepOutputs
from mmrl.tokens.token_model import TokenModel


class TokenPolicy(TokenModel):
    """A policy whose decisions are tokens of a transformers model; a subclass samples them and scores recordings."""

    capabilities: frozenset[Capability] = frozenset(
        {
            *(Capability.LOG_PROBS, Capability.ENTROPY, Capability.TEACHER_FORCE),
            *(Capability.SELECT_ROWS, Capability.FUSED_LOSS),
        }
    )
    _loss_grad: LossGradFn | None = None

    @abstractmethod
    def _score(self, recording: Any) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, [B, T] each, with a graph if gradients are enabled."""

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Recompute the log-probabilities of these tokens and pass them to `visit` in one call."""
        log_probs, entropy = self._score(rollout.recording)
        chosen = list(step_indices)
        if chosen != list(range(log_probs.shape[1])):
            log_probs, entropy = log_probs[:, chosen], entropy[:, chosen]
        visit(StepOutputs(tuple(chosen), log_probs, entropy=entropy))

    @torch.no_grad()
    def replay_gap(self, rollout: Rollout) -> float:
        """Return max |log-prob difference| between the rollout and a replay, over the tokens of the mask."""
        log_probs, _ = self._score(rollout.recording)
        return float((log_probs - rollout.log_probs).abs()[rollout.mask].max())

    @contextmanager
    def fused_loss(self, loss_grad: LossGradFn) -> Iterator[None]:
        """While open, replays with gradients use this loss derivative."""
        before, self._loss_grad = self._loss_grad, loss_grad
        try:
            yield
        finally:
            self._loss_grad = before

    def reference(self) -> AbstractContextManager[None]:
        """Return a context in which the policy computes with the parameters that training started from."""
        return self._trainable.reference()

    def base(self) -> ReferencePolicy:
        """Return the policy as it was before training; it shares this one's weights."""
        return ReferencePolicy(self)
