"""Monitors of a run: one ends it at a limit on the distance from the reference, one warns of iterations without signal.

`KLEarlyStopping` is a guard against reward hacking: a policy far from its reference often scores high on a reward and
low on everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from mmrl.algorithms.forward_process import interpolate, velocity_mse
from mmrl.algorithms.kl import gaussian_mean_distance, kl_k3
from mmrl.distributed import processes
from mmrl.policy import Capability, Policy, StepOutputs, VelocityPolicy
from mmrl.rollout import Rollout
from mmrl.training.objectives.replay_passes import marked_steps

PLACES = (0.2, 0.5, 0.8)
"""The quantiles of the noise levels at which velocities are compared."""
PATIENCE = 10
"""Iterations without signal after which the warning is repeated, and again each time their number has doubled."""


class KLEarlyStopping:
    """A monitor that ends a run once the distance of the policy from its reference exceeds a limit.

    The distance is the metric `kl` of the objective. Where the objective logs none, `distance_from_reference` of the
    iteration's first micro-batch, after its updates, is logged as `kl`.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.last: float | None = None
        """The distance of the last iteration in which it is known; saved with the run."""

    @property
    def exceeded(self) -> bool:
        """True once the last known distance is above the limit."""
        return self.limit is not None and self.last is not None and self.last > self.limit

    def update(self, metrics: dict[str, float], policy: Policy, rollouts: Sequence[Rollout], seed: int) -> None:
        """Read the metrics of an iteration; add `kl` if it is missing and there are rollouts."""
        if self.limit is None:
            return
        if "kl" not in metrics and rollouts:
            own = None if rollouts[0].remote else distance_from_reference(policy, rollouts[0], seed)
            metrics["kl"] = next(distance for distance in processes.gather(own) if distance is not None)
        if math.isfinite(last := metrics.get("kl", math.nan)):
            self.last = last

    def describe(self) -> str:
        """Return the reason for the end of the run, as a clause."""
        return f"the distance from the reference, {self.last or 0:.2g}, is above training.max_kl, {self.limit or 0:g}"


@torch.no_grad()
def distance_from_reference(policy: Policy, rollout: Rollout, seed: int) -> float:
    """Return the distance of a policy from its reference on a rollout, >= 0.

    Denoising steps: the mean KL of the two Gaussians, as with `kl.kind: mean_distance`. Tokens: the k3 estimate.
    Rollouts without decisions: the mean squared difference of velocities at three noise levels.
    """
    if rollout.mask.any():
        return _decision_distance(policy, rollout)
    return _velocity_distance(policy, rollout, seed)


def _decision_distance(policy: Policy, rollout: Rollout) -> float:
    step_indices = marked_steps(rollout.mask)
    reference: dict[int, Tensor] = {}
    total, count = 0.0, 0

    def record(now: StepOutputs) -> None:
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
            raise ValueError("the policy's replay returned a mean without a standard deviation")
        total, count = total + distance[mask].sum().item(), count + int(mask.sum())

    with policy.reference():
        policy.replay(rollout, step_indices, record)
    policy.replay(rollout, step_indices, compare)
    return total / count


def _velocity_distance(policy: Policy, rollout: Rollout, seed: int) -> float:
    clean = rollout.clean
    if clean is None or Capability.PREDICT_VELOCITY not in policy.capabilities:
        raise ValueError(
            "training.max_kl: this rollout has neither decisions nor clean latents, which a distance needs"
        )
    velocity_policy = cast(VelocityPolicy, policy)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    found = []
    for place in PLACES:
        sigma = velocity_policy.noise_level(place)
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        noisy = interpolate(clean.float(), noise, sigma).to(clean.dtype)
        with policy.reference():
            reference = velocity_policy.predict_velocity(rollout, noisy, sigma)
        found.append(velocity_mse(velocity_policy.predict_velocity(rollout, noisy, sigma), reference).mean().item())
    return sum(found) / len(found)


class ZeroAdvantageMonitor:
    """A monitor that warns when all groups of an iteration have equal rewards, so that every advantage is zero."""

    def __init__(self, message: Callable[[str], None]) -> None:
        self._message = message
        self._streak = 0  # iterations in a row
        self._next = 1

    def update(self, step: int, zero_variance_share: float) -> None:
        """Read the share of groups whose rewards are all equal, in [0, 1]."""
        if not zero_variance_share >= 1:
            self._streak, self._next = 0, 1
            return
        self._streak += 1
        if self._streak < self._next:
            return
        if self._streak == 1:
            self._message(f"iteration {step}: in every group all rewards are equal, or missing, so it taught nothing")
        else:
            self._message(
                f"iteration {step}: for {self._streak} iterations in a row all rewards of every group were equal, so "
                "nothing is learnt. Look at the pictures and the reward; larger data.group_size or more exploration "
                "(sampling.transition.noise_level) may help"
            )
        self._next = max(PATIENCE, 2 * self._streak)
