"""How far a policy may go from its reference before the run ends: a guard against reward hacking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from mmrl.algorithms import gaussian_mean_distance, interpolate, kl_k3, velocity_mse
from mmrl.policy import Capability, Policy, Rollout, StepOutputs, VelocityPolicy

PLACES = (0.2, 0.5, 0.8)
"""Where among the noise levels velocities are compared."""


class KLEarlyStopping:
    """Ends a run once an iteration's distance from the reference is above a limit.

    The distance is what the objective logs as `kl`. Where it logs none, `distance_from_reference` is logged in its
    place, of the iteration's first micro-batch, after its updates.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.last: float | None = None
        """Of the last iteration; saved with the run."""

    @property
    def spent(self) -> bool:
        """Whether the last iteration whose distance is known went past the limit."""
        return self.limit is not None and self.last is not None and self.last > self.limit

    def see(self, metrics: dict[str, float], policy: Policy, rollouts: Sequence[Rollout], seed: int) -> None:
        """Take an iteration's metrics; adds `kl` where it is not there and something was drawn."""
        if self.limit is None:
            return
        if "kl" not in metrics and rollouts:
            metrics["kl"] = distance_from_reference(policy, rollouts[0], seed)
        if math.isfinite(last := metrics.get("kl", math.nan)):
            self.last = last

    def told(self) -> str:
        """Why the run ends, in half a sentence."""
        return f"the distance from the reference, {self.last or 0:.2g}, is above training.max_kl, {self.limit or 0:g}"


@torch.no_grad()
def distance_from_reference(policy: Policy, rollout: Rollout, seed: int) -> float:
    """How far a policy is from its reference on a rollout, >= 0.

    Of denoising steps, the mean KL of the two Gaussians as `kl.kind: mean_distance` has it; of tokens, the k3 estimate;
    of rollouts without decisions, the mean squared difference of velocities at a few noise levels.
    """
    if rollout.mask.any():
        return _of_decisions(policy, rollout)
    return _of_velocities(policy, rollout, seed)


def _of_decisions(policy: Policy, rollout: Rollout) -> float:
    step_indices = rollout.mask.any(0).nonzero()[:, 0].tolist()
    reference: dict[int, Tensor] = {}
    total, count = 0.0, 0

    def note(now: StepOutputs) -> None:
        compared = now.log_probs if now.mean is None else now.mean
        reference.update({t: compared[:, k] for k, t in enumerate(now.step_indices)})

    def compare(now: StepOutputs) -> None:
        nonlocal total, count
        here = list(now.step_indices)
        mask, other = rollout.mask[:, here], torch.stack([reference[t] for t in here], dim=1)
        if now.mean is None:
            distance = kl_k3(now.log_probs, other, mask)
        elif now.std is not None:
            each = [gaussian_mean_distance(now.mean[:, k], other[:, k], now.std[:, k]) for k in range(len(here))]
            distance = torch.stack(each, dim=1)
        else:
            raise ValueError("the policy's replay gave a mean without a standard deviation")
        total, count = total + distance[mask].sum().item(), count + int(mask.sum())

    with policy.reference():
        policy.replay(rollout, step_indices, note)
    policy.replay(rollout, step_indices, compare)
    return total / count


def _of_velocities(policy: Policy, rollout: Rollout, seed: int) -> float:
    clean = rollout.clean
    if clean is None or Capability.PREDICT_VELOCITY not in policy.capabilities:
        raise ValueError("training.max_kl: this rollout has neither decisions nor a last latent to compare by")
    asked = cast(VelocityPolicy, policy)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    found = []
    for place in PLACES:
        sigma = asked.noise_level(place)
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        noisy = interpolate(clean.float(), noise, sigma).to(clean.dtype)
        with policy.reference():
            reference = asked.predict_velocity(rollout, noisy, sigma)
        found.append(velocity_mse(asked.predict_velocity(rollout, noisy, sigma), reference).mean().item())
    return sum(found) / len(found)
