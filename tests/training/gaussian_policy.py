"""A policy whose every number is known: decisions a_t ~ N(theta_t, std), answers are texts of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.policy import Capability, DecisionCallback, StepOutputs
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest


class GaussianPolicy:
    """T independent decisions with learnt means and a known spread."""

    capabilities = frozenset({Capability.LOG_PROBS, Capability.MOMENTS})

    def __init__(self, decisions: int = 2, std: float = 0.5) -> None:
        self.theta = nn.Parameter(torch.zeros(decisions))
        self._start = torch.zeros(decisions)
        self.std = std
        self.version = 0
        self.drift = 0.0  # added to replayed log-probabilities: a replay that does not repeat its rollout

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        samples = [request.sample for request in requests for _ in range(request.n)]
        groups = [request.group for request in requests for _ in range(request.n)]
        noise = torch.randn(len(samples), len(self.theta), generator=torch.Generator().manual_seed(seed))
        actions = (self.theta + self.std * noise).detach()
        return Rollout(
            samples=samples,
            group_index=torch.tensor(groups),
            log_probs=self._log_probs(actions).detach(),
            mask=torch.ones_like(actions, dtype=torch.bool),
            channel=torch.zeros_like(actions, dtype=torch.int64),
            media=[" ".join(f"{a:.6f}" for a in row) for row in actions.tolist()],
            policy_version=self.version,
            recording=actions,
            means=self.theta.detach().expand(len(actions), -1)[..., None].clone() if requests[0].keep_means else None,
        )

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        for t in step_indices:
            visit(
                StepOutputs(
                    step_indices=(t,),
                    log_probs=self._log_probs(rollout.recording)[:, [t]] + self.drift,
                    mean=self.theta[t].expand(rollout.rows, 1, 1),
                    std=torch.full((rollout.rows, 1), self.std),
                    velocity=self.theta[t].expand(rollout.rows, 1, 1),
                    gain=torch.ones(rollout.rows, 1),
                )
            )

    def predict_velocity(self, rollout: Rollout, noisy: Tensor, sigma: float) -> Tensor:
        raise NotImplementedError("not among the powers")

    @contextmanager
    def reference(self) -> Iterator[None]:
        live, self.theta.data = self.theta.data, self._start
        try:
            yield
        finally:
            self.theta.data = live

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        return {"theta": self.theta}

    def lr_scale(self, name: str) -> float:
        return 1.0

    def save(self, folder: Path) -> None:
        save_file({"theta": self.theta.detach()}, folder / "theta.safetensors")

    def load(self, folder: Path) -> None:
        self.theta.data.copy_(load_file(folder / "theta.safetensors")["theta"])

    def replay_gap(self, rollout: Rollout) -> float:
        return (self._log_probs(rollout.recording) + self.drift - rollout.log_probs).abs().max().item()

    def _log_probs(self, actions: Tensor) -> Tensor:
        return torch.distributions.Normal(self.theta, self.std).log_prob(actions)
