"""Families of schedulers: which transitions they allow, and what their steps mean in noise levels.

    flow  sigma-based: FlowMatchEuler, and multistep solvers (UniPC, DPM++) whose model predicts a flow
    vp    variance-preserving: DDIM

A stochastic rollout replaces the scheduler's own step, so any solver of a family serves: only its noise levels count.
To add a family: extend `Family`, and name its schedulers in `_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import torch

from mmrl.config.sampling import TransitionConfig
from mmrl.config.section import ConfigError
from mmrl.generation.errors import UnsupportedError
from mmrl.generation.transitions import CPS, DDIM, ODE, DanceSDE, FlowSDE, Transition

Levels = list[tuple[float, float]]
"""(sigma, sigma') of every step of a schedule."""


class Family(Protocol):
    """What a kind of scheduler means in noise levels."""

    name: ClassVar[str]
    transitions: ClassVar[tuple[str, ...]]

    def levels(self, scheduler: Any) -> Levels:
        """(sigma, sigma') of every step of the present schedule."""
        ...

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        """Where in the schedule a loop begins that calls `step` with this timestep first."""
        ...

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        """The configured transition on this schedule."""
        ...

    def deterministic(self, scheduler: Any) -> Transition:
        """What steps outside of the window follow."""
        ...


class FlowFamily:
    """x = (1 - sigma) x_0 + sigma noise; the model predicts the velocity noise - x_0."""

    name: ClassVar[str] = "flow"
    transitions: ClassVar[tuple[str, ...]] = ("ode", "flow_sde", "dance_sde", "cps")

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(scheduler.sigmas.tolist()))

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        if scheduler.step_index is None:
            scheduler._init_step_index(timestep)
        return int(scheduler.step_index)

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        first_sigma = levels[min(1, len(levels) - 1)][0]
        kinds: dict[str, Callable[[], Transition]] = {
            "ode": ODE,
            "flow_sde": lambda: FlowSDE(config.noise_level, first_sigma),
            "dance_sde": lambda: DanceSDE(config.noise_level),
            "cps": lambda: CPS(config.noise_level),
        }
        return kinds[config.name]()

    def deterministic(self, scheduler: Any) -> Transition:
        return ODE()

    def hold(self, scheduler: Any, sigma: float) -> int:
        """Set every step of the schedule to one noise level; return the step that would have come nearest to it.

        A level of the schedule itself keeps the timestep that the scheduler gave it; others get sigma times the
        number of training timesteps, in the schedule's dtype. No shift: sigma is the actual noise level.
        """
        sigmas, timesteps = scheduler.sigmas, scheduler.timesteps
        distance = (sigmas[:-1].double() - sigma).abs()
        nearest = int(distance.argmin())
        timestep = torch.tensor(sigma, dtype=sigmas.dtype) * scheduler.config.num_train_timesteps
        if distance[nearest] < 1e-6:
            timestep = timesteps[nearest]
        steps = max(2, len(timesteps))  # the first hands over x_t
        scheduler.timesteps = torch.full((steps,), timestep.item(), dtype=timesteps.dtype, device=timesteps.device)
        scheduler.sigmas = torch.full((steps + 1,), sigma, dtype=sigmas.dtype, device=sigmas.device)
        scheduler.set_begin_index(0)  # equal timesteps cannot be told apart by value
        return nearest


class VPFamily:
    """x = sqrt(1 - sigma²) x_0 + sigma noise; the model predicts the noise, x_0 or v."""

    name: ClassVar[str] = "vp"
    transitions: ClassVar[tuple[str, ...]] = ("ode", "ddim")

    def levels(self, scheduler: Any) -> Levels:
        kept, last = scheduler.alphas_cumprod.tolist(), float(scheduler.final_alpha_cumprod)
        stride = scheduler.config.num_train_timesteps // scheduler.num_inference_steps
        return [
            ((1 - kept[t]) ** 0.5, (1 - (kept[t - stride] if t >= stride else last)) ** 0.5)
            for t in scheduler.timesteps.tolist()
        ]

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        return int(scheduler.timesteps.tolist().index(int(timestep)))

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        return self._ddim(scheduler, config.noise_level if config.name == "ddim" else 0.0)

    def deterministic(self, scheduler: Any) -> Transition:
        return self._ddim(scheduler, 0.0)

    def _ddim(self, scheduler: Any, eta: float) -> DDIM:
        config = scheduler.config
        return DDIM(eta, config.prediction_type, config.clip_sample_range if config.clip_sample else None)


_FLOW, _VP = FlowFamily(), VPFamily()
_FLOW_SOLVERS = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler")
_FAMILIES: dict[str, Family] = {
    "FlowMatchEulerDiscreteScheduler": _FLOW,
    **dict.fromkeys(_FLOW_SOLVERS, _FLOW),
    "DDIMScheduler": _VP,
}


def family_of(scheduler: Any) -> Family:
    """The family of a scheduler.

    Raises:
        UnsupportedError: it has none; the message says why and what to use instead.
    """
    name = type(scheduler).__name__
    if why := refusal(scheduler):
        raise UnsupportedError(f"{name} cannot be trained through: {why}")
    return _FAMILIES[name]


def refusal(scheduler: Any) -> str | None:
    """Why a scheduler cannot be trained through, or None."""
    name, config = type(scheduler).__name__, scheduler.config
    if name not in _FAMILIES:
        return (f"its family is not covered (covered: {', '.join(_FAMILIES)}). For a model that predicts noise or v, "
                "set pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)")  # fmt: skip
    if name in _FLOW_SOLVERS and not (config.prediction_type == "flow_prediction" and config.use_flow_sigmas):
        return ("it solves a noise model here (prediction_type is not flow_prediction with use_flow_sigmas): "
                "set pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)")  # fmt: skip
    if config.get("invert_sigmas"):
        return "invert_sigmas counts noise levels upwards, from 0 to 1"
    if config.get("stochastic_sampling") or str(config.get("algorithm_type", "")).startswith("sde"):
        return "it is set to draw noise of its own: leave that off and choose a transition"
    if config.get("thresholding"):
        return "thresholding couples the pixels of a step, which leaves it without a Gaussian mean"
    return None


def check_transition(config: TransitionConfig, family: Family) -> None:
    """Raise ConfigError if this family of schedulers has no such transition."""
    if config.name not in family.transitions:
        raise ConfigError(f"sampling.transition.name: {config.name} does not fit the pipeline's scheduler, which is of "
                          f"the {family.name} family: choose {', '.join(family.transitions)}")  # fmt: skip
