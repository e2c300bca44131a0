"""Scheduler families: the noise levels of a scheduler's steps, and the mean and spread of a step under a transition.

    flow    x = (1 - sigma) x_0 + sigma noise: FlowMatchEuler, and solvers (UniPC, DPM++) whose model predicts a flow
    vp      variance-preserving: DDIM, CogVideoX's DDIM, and the same solvers where the model predicts noise or v
    ve      variance-exploding: Euler and LMS
    native  schedulers that sample noise in their own step: DDPM, LCM, TCD, Euler ancestral, SCM

A stochastic rollout of the first three replaces the scheduler's own step, so every solver of a family is supported:
only its noise levels matter. The fourth keeps the scheduler's step and measures its mean and standard deviation.
A transition declares the families that it supports (`transitions`). To add a family: implement `SchedulerFamily` and
list its schedulers in `_FAMILIES`.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import diffusers
import torch
from diffusers import SchedulerMixin
from torch import Tensor

from mmrl.config.sampling import TRANSITIONS, TransitionConfig
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.transitions import DDIM, ODE, Level, Native, Transition
from mmrl.suggestions import did_you_mean

if TYPE_CHECKING:
    from mmrl.generation.diffusion.scheduler_hook import SchedulerStep

Levels = list[tuple[float, float]]
"""(sigma, sigma') of every step of a schedule."""


class SchedulerFamily(ABC):
    """A kind of scheduler, described by the noise levels of its steps."""

    name: ClassVar[str]
    has_by_products: ClassVar[bool] = False  # True: its steps return more than x', which pipelines unpack

    @abstractmethod
    def levels(self, scheduler: Any) -> Levels:
        """Return (sigma, sigma') of every step of the current schedule."""

    @abstractmethod
    def first_step(self, scheduler: Any, timestep: Any) -> int:
        """Return the index in the schedule of a loop's first step, which has this timestep."""

    @abstractmethod
    def deterministic(self, scheduler: Any) -> Transition | None:
        """Return the transition of steps outside of the window; None: the scheduler's own step."""

    @abstractmethod
    def moments(self, transition: Transition, step: SchedulerStep) -> tuple[Tensor, Level]:
        """Return the mean [B, ...] float32 and the standard deviation of x'."""

    def velocity(self, step: SchedulerStep) -> Tensor:
        """Return the model's output [B, ...] in the family's own terms."""
        return step.output


class NoiseLevelFamily(SchedulerFamily):
    """A family whose latents have a known noise level; a transition between levels replaces the scheduler's own step.

    Noise levels are a flow's in every family: sigma / (1 - sigma) is the ratio of noise to signal.
    """

    @abstractmethod
    def noise_level(self, scheduler: Any, place: float) -> float:
        """Return the noise level in (0, 1] at quantile `place` in (0, 1] of the model's training levels."""

    def visit(self, scheduler: Any, places: Sequence[int]) -> None:
        """Set the schedule to these of its noise levels, in this order; its end is the last of them."""
        chosen = list(places)
        scheduler.sigmas, scheduler.timesteps = scheduler.sigmas[chosen], scheduler.timesteps[chosen[:-1]]
        scheduler.set_begin_index(0)  # equal timesteps cannot be distinguished by value

    @abstractmethod
    def set_constant_sigma(self, scheduler: Any, sigma: float) -> int:
        """Set every step of the schedule to one noise level; return the index of the step that was nearest to it."""

    def moments(self, transition: Transition, step: SchedulerStep) -> tuple[Tensor, Level]:
        return transition.moments(step.sample.float(), self.velocity(step).float(), *step.levels[step.index])


class FlowFamily(NoiseLevelFamily):
    """x = (1 - sigma) x_0 + sigma noise; the model predicts the velocity noise - x_0."""

    name: ClassVar[str] = "flow"

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(scheduler.sigmas.tolist()))

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        return _step_index(scheduler, timestep)

    def deterministic(self, scheduler: Any) -> Transition | None:
        return ODE()

    def noise_level(self, scheduler: Any, place: float) -> float:
        """Return `place`: a flow's training levels are uniform."""
        return place

    def set_constant_sigma(self, scheduler: Any, sigma: float) -> int:
        """A level of the schedule keeps the timestep that the scheduler assigned to it.

        Other levels get sigma times the number of training timesteps, in the schedule's dtype. No shift is applied:
        sigma is the actual noise level.
        """
        sigmas, timesteps = scheduler.sigmas, scheduler.timesteps
        distance = (sigmas[:-1].cpu().double() - sigma).abs()
        nearest = int(distance.argmin())
        timestep = torch.tensor(sigma, dtype=sigmas.dtype) * scheduler.config.num_train_timesteps
        if distance[nearest] < 1e-6:
            timestep = timesteps[nearest]
        _fill(scheduler, timestep.item(), sigma)
        return nearest


class InvertedFlowFamily(FlowFamily):
    """Flow schedules that count 1 - sigma upwards and whose model predicts x_0 - noise (Mochi)."""

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(1 - value for value in scheduler.sigmas.tolist()))

    def velocity(self, step: SchedulerStep) -> Tensor:
        return -step.output

    def set_constant_sigma(self, scheduler: Any, sigma: float) -> int:
        return super().set_constant_sigma(scheduler, 1 - sigma)


class VPFamily(NoiseLevelFamily):
    """x = sqrt(1 - sigma²) x_0 + sigma noise; the model predicts the noise, x_0 or v."""

    name: ClassVar[str] = "vp"

    def levels(self, scheduler: Any) -> Levels:
        alphas, last = scheduler.alphas_cumprod.tolist(), float(scheduler.final_alpha_cumprod)
        stride = scheduler.config.num_train_timesteps // scheduler.num_inference_steps
        return [
            ((1 - alphas[t]) ** 0.5, (1 - (alphas[t - stride] if t >= stride else last)) ** 0.5)
            for t in scheduler.timesteps.tolist()
        ]

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        return _nearest_timestep(scheduler, timestep)

    def deterministic(self, scheduler: Any) -> Transition | None:
        return DDIM.of_scheduler(scheduler, 0.0)

    def noise_level(self, scheduler: Any, place: float) -> float:
        """Return the level of a training timestep; training samples timesteps uniformly."""
        levels = _flow_level(_training_shares(scheduler))
        return float(levels[round(place * (len(levels) - 1))])

    def set_constant_sigma(self, scheduler: Any, sigma: float) -> int:
        """The model was trained at whole timesteps, so the nearest one is used."""
        shares = _training_shares(scheduler)
        known = torch.tensor([share for share, _ in self.levels(scheduler)], dtype=torch.float64)
        nearest, timestep = (int((_flow_level(each) - sigma).abs().argmin()) for each in (known, shares))
        share = shares[timestep]
        _fill(scheduler, timestep, (share / (1 - share**2).sqrt()).item())
        return nearest


class VPSolverFamily(VPFamily):
    """Variance-preserving solvers whose sigmas are sigma / sqrt(1 - sigma²), the ratio of noise to signal."""

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(_share(ratio) for ratio in scheduler.sigmas.tolist()))

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        return _step_index(scheduler, timestep)


class VEFamily(VPSolverFamily):
    """x = x_0 + ratio noise: the variance-preserving x divided by its signal. Steps are computed for the latter."""

    name: ClassVar[str] = "ve"

    def moments(self, transition: Transition, step: SchedulerStep) -> tuple[Tensor, Level]:
        sigma, sigma_next = step.levels[step.index]
        signal, signal_next = (1 - sigma**2) ** 0.5, (1 - sigma_next**2) ** 0.5
        mean, std = transition.moments(step.sample.float() * signal, step.output.float(), sigma, sigma_next)
        return mean / signal_next, std / signal_next


class NativeFamily(SchedulerFamily):
    """Schedulers that sample x' themselves; the Gaussian is measured by replacing their noise with 0 and with 1."""

    name: ClassVar[str] = "native"
    has_by_products: ClassVar[bool] = True

    def levels(self, scheduler: Any) -> Levels:
        ends = type(scheduler).__name__ in _SCHEDULES_WITH_END
        return [(math.nan, math.nan)] * (len(scheduler.timesteps) - ends)  # unknown, and no transition reads them

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        if hasattr(scheduler, "_init_step_index"):
            return _step_index(scheduler, timestep)
        return _nearest_timestep(scheduler, timestep)

    def deterministic(self, scheduler: Any) -> Transition | None:
        return None

    def moments(self, transition: Transition, step: SchedulerStep) -> tuple[Tensor, Level]:
        mean = step.with_noise(0.0)
        with torch.no_grad():
            std = (step.with_noise(1.0) - mean).mean().item()
        return mean, std


_FLOW, _INVERTED_FLOW, _NATIVE = FlowFamily(), InvertedFlowFamily(), NativeFamily()
_VP, _VP_SOLVER, _VE = VPFamily(), VPSolverFamily(), VEFamily()
_SOLVERS = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler", "DEISMultistepScheduler")  # of flows and of noise
_FAMILIES: dict[str, SchedulerFamily] = {
    **dict.fromkeys(("FlowMatchEulerDiscreteScheduler", "HeliosScheduler"), _FLOW),
    **dict.fromkeys(("DDIMScheduler", "CogVideoXDDIMScheduler"), _VP),
    **dict.fromkeys(_SOLVERS, _VP_SOLVER),
    **dict.fromkeys(("EulerDiscreteScheduler", "LMSDiscreteScheduler"), _VE),
    **dict.fromkeys(("DDPMScheduler", "DDPMWuerstchenScheduler", "EulerAncestralDiscreteScheduler"), _NATIVE),
    **dict.fromkeys(("FlowMatchLCMScheduler", "LCMScheduler", "SCMScheduler", "TCDScheduler"), _NATIVE),
}
_SCHEDULES_WITH_END = ("SCMScheduler", "DDPMWuerstchenScheduler")
"""Schedulers whose timesteps end with the 0 that the last step arrives at."""


def family_of(scheduler: Any) -> SchedulerFamily:
    """Return the family of a scheduler.

    Raises:
        UnsupportedError: it has none; the message has the reason and an alternative.
    """
    name = type(scheduler).__name__
    if reason := unsupported_reason(scheduler):
        raise UnsupportedError(f"{name} cannot be trained through: {reason}")
    config = scheduler.config
    if name in _SOLVERS and config.prediction_type == "flow_prediction":
        return _FLOW
    if _FAMILIES[name] is _FLOW and config.get("sigma_max", 0) > 1:  # Cosmos: the step of a flow, the x of noise
        return _VE
    return _INVERTED_FLOW if config.get("invert_sigmas") else _FAMILIES[name]


def noise_level_family(scheduler: Any) -> NoiseLevelFamily:
    """Return the family of a scheduler whose latents have a known noise level.

    Raises:
        UnsupportedError: the scheduler samples noise itself and does not say how much.
    """
    family = family_of(scheduler)
    if not isinstance(family, NoiseLevelFamily):
        raise UnsupportedError(f"{type(scheduler).__name__} does not say how much noise its latents hold: set another "
                               "policy.scheduler, such as DDIMScheduler for models that predict noise")  # fmt: skip
    return family


def supported_schedulers() -> tuple[str, ...]:
    """Return the names of the scheduler classes that have a family."""
    return tuple(_FAMILIES)


def unsupported_reason(scheduler: Any) -> str | None:
    """Return the reason why a scheduler cannot be trained through, or None."""
    name, config = type(scheduler).__name__, scheduler.config
    if name not in _FAMILIES:
        return (f"its family is not covered (covered: {', '.join(_FAMILIES)}). For a model that predicts noise or v, "
                "set policy.scheduler=DDIMScheduler")  # fmt: skip
    prediction = config.get("prediction_type", "epsilon")
    if prediction == "flow_prediction" and not config.get("use_flow_sigmas"):
        return "its model predicts a flow, but use_flow_sigmas is off"
    if _FAMILIES[name] is not _NATIVE and prediction not in ("flow_prediction", "epsilon", "v_prediction", "sample"):
        return f"prediction_type {prediction} is not supported"
    if config.get("stages", 1) != 1:
        return "its stages sample new noise between resolutions"
    if config.get("stochastic_sampling") or str(config.get("algorithm_type", "")).startswith("sde"):
        return "it is set to sample noise in its step: turn that off and choose a transition"
    if config.get("thresholding") and _FAMILIES[name] is not _NATIVE:
        return "thresholding couples the pixels of a step, which leaves it without a Gaussian mean"
    if config.get("rescale_betas_zero_snr") and _FAMILIES[name] is _VP and prediction == "epsilon":
        return "at zero terminal SNR the noise says nothing of x_0: predict v or x_0"
    if config.get("rescale_betas_zero_snr") and _FAMILIES[name] in (_VE, _VP_SOLVER):
        return "zero terminal SNR has no ratio of noise to signal: set policy.scheduler=DDIMScheduler"
    if str(config.get("variance_type", "")).startswith("learned") and _FAMILIES[name] is _NATIVE:
        return "its variance is learned: a step's noise would be trained away, not its mean"
    return None


def check_transition(config: TransitionConfig, family: SchedulerFamily) -> None:
    """Raise ConfigError unless the configured transition has valid settings and supports this family of schedulers."""
    transition = TRANSITIONS.load(config.name)
    for message in transition.config_errors(config):
        raise ConfigError(message)
    if family.name not in transition.families:
        choices = [name for name in TRANSITIONS.names() if family.name in TRANSITIONS.load(name).families]
        raise ConfigError(f"sampling.transition.name: {config.name} does not fit the pipeline's scheduler, which is of "
                          f"the {family.name} family: choose {', '.join(choices)}")  # fmt: skip


def make_transition(config: TransitionConfig, family: SchedulerFamily, scheduler: Any, levels: Levels) -> Transition:
    """Return the configured transition on a schedule; `ode` is the family's deterministic transition, if it has one."""
    if config.name == "ode" and (deterministic := family.deterministic(scheduler)) is not None:
        return deterministic
    return TRANSITIONS.load(config.name).from_config(config, scheduler, levels)


def velocity_gain(family: SchedulerFamily, transition: Transition, step: SchedulerStep) -> float | None:
    """Return |d mean / d output|, the change of a step's mean with the model's output; None: only the scheduler knows.

    Means are linear in x and in the output, so this is the mean of a small output at x = 0.
    """
    if isinstance(transition, Native):
        return None
    unit, none = torch.full((1, 1), 1e-3), torch.zeros(1, 1)  # small: some models clip their x_0
    with torch.no_grad():
        mean, _ = family.moments(transition, replace(step, output=unit, sample=none))
    return abs(mean.item()) / 1e-3


def _share(ratio: float) -> float:
    return ratio / (1 + ratio**2) ** 0.5


def _training_shares(scheduler: Any) -> Tensor:
    """Return the share of noise, sqrt(1 - signal²), at each training timestep of a vp or ve model, [T] float64.

    Raises:
        UnsupportedError: the model was not trained at numbered timesteps (Cosmos), or takes its noise level in another
            form (Stable Video Diffusion).
    """
    alphas = getattr(scheduler, "alphas_cumprod", None)
    if alphas is None or scheduler.config.get("timestep_type") == "continuous":
        raise UnsupportedError(f"{type(scheduler).__name__} does not say which noise levels its model was trained at")
    return (1 - alphas.cpu().double()).sqrt()


def _flow_level(share: Tensor) -> Tensor:
    """Return a flow's noise level with the same ratio of noise to signal as a share of noise, sqrt(1 - signal²)."""
    return share / (share + (1 - share**2).sqrt())


def _fill(scheduler: Any, timestep: float, sigma: float) -> None:
    """Set every timestep of the schedule, and every sigma if the scheduler has any."""
    timesteps = scheduler.timesteps
    steps = max(2, len(timesteps))  # the first step returns x_t
    scheduler.timesteps = torch.full((steps,), timestep, dtype=timesteps.dtype, device=timesteps.device)
    if hasattr(scheduler, "sigmas"):
        sigmas = scheduler.sigmas
        scheduler.sigmas = torch.full((steps + 1,), sigma, dtype=sigmas.dtype, device=sigmas.device)
        scheduler.set_begin_index(0)  # equal timesteps cannot be distinguished by value


def _step_index(scheduler: Any, timestep: Any) -> int:
    if scheduler.step_index is None:
        scheduler._init_step_index(timestep)
    return int(scheduler.step_index)


def _nearest_timestep(scheduler: Any, timestep: Any) -> int:
    first = torch.as_tensor(timestep).flatten()[0].cpu().double()  # some pipelines pass one per row
    return int((scheduler.timesteps.cpu().double() - first).abs().argmin())


def scheduler_class(name: str) -> Any:
    """Return a scheduler class of diffusers by name; raise ConfigError if there is none."""
    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, SchedulerMixin) and found is not SchedulerMixin):
        known = [each for each in dir(diffusers) if each.endswith("Scheduler")]
        meant = [each for each in known if each.removesuffix("Scheduler") == name] or known
        hint = did_you_mean(name, meant, likeness=0.3, before=": ")
        raise ConfigError(f"policy.scheduler: {name} is no scheduler of diffusers {diffusers.__version__}{hint}")
    return found


def convert_scheduler(scheduler: Any, name: str) -> Any:
    """Return a scheduler of the class `name` with the settings of `scheduler`.

    Some pipelines come with a scheduler that cannot be trained through. If `scheduler` does not set `clip_sample`, the
    new one does not clip: DDIM's default clips x_0 to [-1, 1], which latents exceed.
    """
    kind, config = scheduler_class(name), scheduler.config
    clips = "clip_sample" in inspect.signature(kind.__init__).parameters
    return kind.from_config(config, **({"clip_sample": config.get("clip_sample", False)} if clips else {}))
