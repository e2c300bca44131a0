"""`sde_step_logprob` against the transition and its log-probability written out as a trainer has them, flow-SDE."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

import torch
from lines import Line
from measure import compare
from torch import Tensor

from mmrl_kernels.ops.sde_step_logprob import OP, flow_sde, sde_step_logprob, sde_step_sample
from mmrl_kernels.registry import VARIABLE

GATE = 3.0
SIGMA, SIGMA_NEXT, NOISE_LEVEL, FIRST_SIGMA = 0.8, 0.7, 0.7, 0.96
CASES = {  # name: latents; a group of 512 px and four 1024 px images of SD3, two clips of Wan at 480p
    "images 512": (24, 16, 64, 64),
    "images 1024": (4, 16, 128, 128),
    "clips 480p": (2, 16, 21, 60, 104),
}


def lines(device: str, smoke: bool) -> list[Line]:
    """A rollout's step, a replay's, and a replay's with its backward pass; float32."""
    before = os.environ.get(VARIABLE)
    cases = list(CASES.items())[:1] if smoke else list(CASES.items())
    try:
        return [line for name, shape in cases for line in _case(name, shape, device)]
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def eager_moments(x: Tensor, velocity: Tensor) -> tuple[Tensor, float]:
    """Flow-GRPO's reverse SDE."""
    dt = SIGMA_NEXT - SIGMA
    s2 = NOISE_LEVEL**2 * SIGMA / (1 - SIGMA)
    mean = x * (1 + s2 * dt / (2 * SIGMA)) + velocity * (1 + s2 * (1 - SIGMA) / (2 * SIGMA)) * dt
    return mean, math.sqrt(-s2 * dt)


def eager_score(x: Tensor, velocity: Tensor, next_x: Tensor) -> tuple[Tensor, Tensor]:
    """Its log-density, the mean over latent dimensions."""
    mean, std = eager_moments(x, velocity)
    each = -((next_x.float() - mean.float()) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)
    return each.flatten(1).mean(1), mean


def eager_sample(x: Tensor, velocity: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """x' and its log-density."""
    mean, std = eager_moments(x, velocity)
    next_x = (mean + std * noise).to(x.dtype)
    each = -((next_x.float() - mean.float()) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)
    return next_x, each.flatten(1).mean(1)


def _case(name: str, shape: tuple[int, ...], device: str) -> list[Line]:
    x, velocity, noise, next_x = (torch.randn(shape, device=device) for _ in range(4))
    weights, step = torch.randn(shape[0], device=device), flow_sde(SIGMA, SIGMA_NEXT, NOISE_LEVEL, FIRST_SIGMA)
    trained = velocity.clone().requires_grad_()

    def backward(log_prob: Tensor) -> Tensor:
        return torch.autograd.grad((log_prob * weights).sum(), trained)[0]

    eager: dict[str, Callable[[], Tensor]] = {
        "rollout": lambda: eager_sample(x, velocity, noise)[1],
        "replay": lambda: eager_score(x, velocity, next_x)[0],
        "replay + backward": lambda: backward(eager_score(x, trained, next_x)[0]),
    }
    ours: dict[str, Callable[[], Tensor]] = {
        "rollout": lambda: sde_step_sample(x, velocity, noise, step)[1],
        "replay": lambda: sde_step_logprob(x, velocity, next_x, step)[0],
        "replay + backward": lambda: backward(sde_step_logprob(x, trained, next_x, step)[0]),
    }
    backends = [backend.name for backend in OP.backends if device != "cpu" or backend.name != "triton"]
    found = []
    for what, baseline in eager.items():
        calls = {"eager": baseline} | {backend: _by(backend, ours[what]) for backend in backends}
        _agree(calls)
        measured = compare(calls, device=device)
        for candidate in backends:
            m, gated = measured[candidate], candidate == "compile" and device == "cpu"
            gate, passed = (f">= {GATE:g}x eager", m.ratio >= GATE) if gated else (None, None)
            peak = measured["eager"].peak_mib
            case = f"{name}, {what}"
            found.append(
                Line("sde_step_logprob", case, candidate, "eager", m.seconds, m.ratio, m.peak_mib, peak, gate, passed)
            )
    return found


def _by(backend: str, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def chosen() -> Tensor:
        os.environ[VARIABLE] = backend
        return call()

    return chosen


def _agree(calls: Mapping[str, Callable[[], Tensor]]) -> None:
    due = calls["eager"]()
    for call in calls.values():
        torch.testing.assert_close(call(), due, rtol=1e-4, atol=1e-5)
