"""A flow whose every number is known: data N(mean, SPREAD²) on a line, with the exact velocity and a learnt mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.data.sample import Sample
from mmrl.policy import Capability, DecisionCallback
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest

SPREAD = 0.5


class GaussianFlow:
    """v(x, sigma) = E[noise - x_0 | x_t = x] for x_0 ~ N(mean, SPREAD²)."""

    capabilities = frozenset({Capability.PREDICT_VELOCITY, Capability.FROM_LATENTS, Capability.ENCODE_MEDIA})

    def __init__(self) -> None:
        self.mean = nn.Parameter(torch.zeros(1))
        self.version = 0
        self.gap = 0.0

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        samples = [request.sample for request in requests for _ in range(request.n)]
        groups = torch.tensor([request.group for request in requests for _ in range(request.n)])
        noise = torch.randn(len(samples), 1, generator=torch.Generator().manual_seed(seed))
        clean = (self.mean + SPREAD * noise).detach()
        none = torch.zeros(len(samples), 0)
        return Rollout(
            samples=samples,
            group_index=groups,
            log_probs=none,
            mask=none.bool(),
            channel=none.long(),
            media=[f"{value:.6f}" for value in clean[:, 0].tolist()],
            policy_version=self.version,
            clean=clean,
        )

    def rollout_from_latents(
        self,
        samples: Sequence[Sample],
        groups: Sequence[int],
        clean: Tensor,
        media: Sequence[Any],
        guidance_scale: float | None = None,
    ) -> Rollout:
        none = torch.zeros(len(samples), 0)
        return Rollout(
            samples=list(samples),
            group_index=torch.tensor(groups),
            log_probs=none,
            mask=none.bool(),
            channel=none.long(),
            media=list(media),
            policy_version=self.version,
            clean=clean,
        )

    def encode(self, pictures: Sequence[Any]) -> Tensor:
        """The brightness of a grey picture, 128 being 0."""
        return torch.tensor([[(picture.getpixel((0, 0))[0] - 128) / 64] for picture in pictures]).reshape(-1, 1)

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        raise NotImplementedError("not among the powers")

    def noise_level(self, place: float) -> float:
        return place

    def predict_velocity(self, rollout: Rollout, noisy: Tensor, sigma: float) -> Tensor:
        variance = (1 - sigma) ** 2 * SPREAD**2 + sigma**2
        centred = noisy - (1 - sigma) * self.mean
        noise, clean = sigma * centred / variance, self.mean + (1 - sigma) * SPREAD**2 * centred / variance
        return noise - clean

    @contextmanager
    def reference(self) -> Iterator[None]:
        live, self.mean.data = self.mean.data, torch.zeros(1)
        try:
            yield
        finally:
            self.mean.data = live

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        return {"mean": self.mean}

    def lr_scale(self, name: str) -> float:
        return 1.0

    def save(self, folder: Path) -> None:
        raise NotImplementedError("not needed here")

    def load(self, folder: Path) -> None:
        raise NotImplementedError("not needed here")

    def replay_gap(self, rollout: Rollout) -> float:
        return self.gap
