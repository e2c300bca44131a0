"""The parts that policies of language models share: replay, and the reference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from mmrl.policy import Capability, DecisionCallback, LossGradFn, ReferencePolicy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.tokens.log_probs import TokenScores
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
    def _score(self, recording: Any) -> TokenScores:
        """Return the scores of recorded tokens, [B, T] each; log-probabilities with a graph if gradients are on."""

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Recompute the log-probabilities of these tokens and pass them to `visit` in one call."""
        found = self._score(rollout.recording)
        chosen = list(step_indices)
        if chosen != list(range(found.log_probs.shape[1])):
            found = TokenScores(*(each[:, chosen] for each in found))
        visit(StepOutputs(tuple(chosen), found.log_probs, entropy=found.entropy, mean_log_probs=found.mean_log_probs))

    @torch.no_grad()
    def replay_gap(self, rollout: Rollout) -> float:
        """Return max |log-prob difference| between the rollout and a replay, over the tokens of the mask."""
        log_probs = self._score(rollout.recording).log_probs
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
