"""Families of schedulers: which transitions they allow, and what their steps mean in noise levels.

    flow    x = (1 - sigma) x_0 + sigma noise: FlowMatchEuler, and solvers (UniPC, DPM++) whose model predicts a flow
    vp      variance-preserving: DDIM, CogVideoX's DDIM, and the same solvers where the model predicts noise or v
    ve      variance-exploding: Euler and LMS
    native  schedulers that draw noise of their own: DDPM, LCM, TCD, Euler ancestral, SCM

A stochastic rollout of the first three replaces the scheduler's own step, so any solver of a family serves: only its
noise levels count. The fourth keeps the scheduler's step, and asks it for its mean and standard deviation.
To add a family: extend `Family`, and name its schedulers in `family_of`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, ClassVar, Protocol, cast

import diffusers
import torch
from diffusers import SchedulerMixin
from torch import Tensor

from mmrl.config.sampling import TransitionConfig
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.transitions import CPS, DDIM, ODE, DanceSDE, FlowSDE, Level, Native, NoisyODE, Transition

Levels = list[tuple[float, float]]
"""(sigma, sigma') of every step of a schedule."""


class StepLike(Protocol):
    """What a family needs to know of a step (`mmrl.generation.diffusion.scheduler_hook.Step`)."""

    output: Tensor
    sample: Tensor
    index: int
    levels: Levels

    def with_noise(self, noise: float) -> Tensor:
        """The scheduler's own x' with `noise` in place of every number that it would draw."""
        ...


class Family(Protocol):
    """What a kind of scheduler means in noise levels."""

    name: ClassVar[str]
    transitions: ClassVar[tuple[str, ...]]
    has_by_products: ClassVar[bool]  # whether its steps return more than x', which pipelines unpack

    def levels(self, scheduler: Any) -> Levels:
        """(sigma, sigma') of every step of the present schedule."""
        ...

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        """Where in the schedule a loop begins that calls `step` with this timestep first."""
        ...

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        """The configured transition on this schedule."""
        ...

    def deterministic(self, scheduler: Any) -> Transition | None:
        """What steps outside of the window follow; None: the scheduler's own step."""
        ...

    def moments(self, transition: Transition, step: StepLike) -> tuple[Tensor, Level]:
        """Mean [B, ...] float32 and standard deviation of x'."""
        ...

    def velocity(self, step: StepLike) -> Tensor:
        """[B, ...] the model's output in the family's own terms."""
        ...


class Noised(Family, Protocol):
    """A family that says how much noise its latents hold.

    Noise levels are a flow's here: sigma / (1 - sigma) is the ratio of noise to signal, whatever the family.
    """

    def noise_level(self, scheduler: Any, place: float) -> float:
        """In (0, 1], of a place in (0, 1] among those that the model was trained at, which a uniform place draws."""
        ...

    def hold(self, scheduler: Any, sigma: float) -> int:
        """Set every step of the schedule to one noise level; return the step that would have come nearest to it."""
        ...


class _Replaced:
    """Families whose own steps are replaced by a transition between their noise levels."""

    has_by_products: ClassVar[bool] = False

    def moments(self, transition: Transition, step: StepLike) -> tuple[Tensor, Level]:
        return transition.moments(step.sample.float(), self.velocity(step).float(), *step.levels[step.index])

    def velocity(self, step: StepLike) -> Tensor:
        return step.output


class FlowFamily(_Replaced):
    """x = (1 - sigma) x_0 + sigma noise; the model predicts the velocity noise - x_0."""

    name: ClassVar[str] = "flow"
    transitions: ClassVar[tuple[str, ...]] = ("ode", "flow_sde", "dance_sde", "noisy_ode", "cps")

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(scheduler.sigmas.tolist()))

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        return _step_index(scheduler, timestep)

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        first_sigma = levels[min(1, len(levels) - 1)][0]
        kinds: dict[str, Callable[[], Transition]] = {
            "ode": ODE,
            "flow_sde": lambda: FlowSDE(config.noise_level, first_sigma),
            "dance_sde": lambda: DanceSDE(config.noise_level),
            "noisy_ode": lambda: NoisyODE(config.noise_level),
            "cps": lambda: CPS(config.noise_level),
        }
        return kinds[config.name]()

    def deterministic(self, scheduler: Any) -> Transition | None:
        return ODE()

    def noise_level(self, scheduler: Any, place: float) -> float:
        """Training levels are uniform."""
        return place

    def hold(self, scheduler: Any, sigma: float) -> int:
        """A level of the schedule itself keeps the timestep that the scheduler gave it.

        Others get sigma times the number of training timesteps, in the schedule's dtype. No shift: sigma is the actual
        noise level.
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
    """The same, for schedules that count upwards, with what is left of the noise, and predict x_0 - noise (Mochi)."""

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(1 - left for left in scheduler.sigmas.tolist()))

    def velocity(self, step: StepLike) -> Tensor:
        return -step.output

    def hold(self, scheduler: Any, sigma: float) -> int:
        return super().hold(scheduler, 1 - sigma)


class VPFamily(_Replaced):
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
        return _nearest_timestep(scheduler, timestep)

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        return self._ddim(scheduler, config.noise_level if config.name == "ddim" else 0.0)

    def deterministic(self, scheduler: Any) -> Transition | None:
        return self._ddim(scheduler, 0.0)

    def noise_level(self, scheduler: Any, place: float) -> float:
        """That of a training timestep; those are drawn uniformly."""
        levels = _flow_level(_training_shares(scheduler))
        return float(levels[round(place * (len(levels) - 1))])

    def hold(self, scheduler: Any, sigma: float) -> int:
        """The model was trained at whole timesteps: the nearest is taken."""
        shares = _training_shares(scheduler)
        known = torch.tensor([share for share, _ in self.levels(scheduler)], dtype=torch.float64)
        nearest, timestep = (int((_flow_level(each) - sigma).abs().argmin()) for each in (known, shares))
        share = shares[timestep]
        _fill(scheduler, timestep, (share / (1 - share**2).sqrt()).item())
        return nearest

    def _ddim(self, scheduler: Any, eta: float) -> DDIM:
        config = scheduler.config
        clips = type(scheduler).__name__ == "DDIMScheduler" and config.clip_sample  # others have the key and ignore it
        return DDIM(eta, config.get("prediction_type", "epsilon"), config.clip_sample_range if clips else None)


class VPSolverFamily(VPFamily):
    """The same, for solvers that count in sigma / sqrt(1 - sigma²), the ratio of noise to signal."""

    def levels(self, scheduler: Any) -> Levels:
        return list(pairwise(_share(ratio) for ratio in scheduler.sigmas.tolist()))

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        return _step_index(scheduler, timestep)


class VEFamily(VPSolverFamily):
    """x = x_0 + ratio noise: the variance-preserving x over its signal. Steps are taken in the latter's terms."""

    name: ClassVar[str] = "ve"

    def moments(self, transition: Transition, step: StepLike) -> tuple[Tensor, Level]:
        sigma, sigma_next = step.levels[step.index]
        signal, signal_next = (1 - sigma**2) ** 0.5, (1 - sigma_next**2) ** 0.5
        mean, std = transition.moments(step.sample.float() * signal, step.output.float(), sigma, sigma_next)
        return mean / signal_next, std / signal_next


class NativeFamily:
    """The scheduler draws x' itself, from a Gaussian that it is asked for by handing it chosen noise."""

    name: ClassVar[str] = "native"
    transitions: ClassVar[tuple[str, ...]] = ("ode", "native")
    has_by_products: ClassVar[bool] = True

    def levels(self, scheduler: Any) -> Levels:
        ends = type(scheduler).__name__ in _SCHEDULES_WITH_END
        return [(math.nan, math.nan)] * (len(scheduler.timesteps) - ends)  # nobody needs to know

    def first_step(self, scheduler: Any, timestep: Any) -> int:
        if hasattr(scheduler, "_init_step_index"):
            return _step_index(scheduler, timestep)
        return _nearest_timestep(scheduler, timestep)

    def transition(self, config: TransitionConfig, scheduler: Any, levels: Levels) -> Transition:
        return Native()

    def deterministic(self, scheduler: Any) -> Transition | None:
        return None

    def moments(self, transition: Transition, step: StepLike) -> tuple[Tensor, Level]:
        mean = step.with_noise(0.0)
        with torch.no_grad():
            std = (step.with_noise(1.0) - mean).mean().item()
        return mean, std

    def velocity(self, step: StepLike) -> Tensor:
        return step.output


_FLOW, _INVERTED_FLOW, _NATIVE = FlowFamily(), InvertedFlowFamily(), NativeFamily()
_VP, _VP_SOLVER, _VE = VPFamily(), VPSolverFamily(), VEFamily()
_SOLVERS = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler", "DEISMultistepScheduler")  # of flows and of noise
_FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("FlowMatchEulerDiscreteScheduler", "HeliosScheduler"), _FLOW),
    **dict.fromkeys(("DDIMScheduler", "CogVideoXDDIMScheduler"), _VP),
    **dict.fromkeys(_SOLVERS, _VP_SOLVER),
    **dict.fromkeys(("EulerDiscreteScheduler", "LMSDiscreteScheduler"), _VE),
    **dict.fromkeys(
        (
            "DDPMScheduler",
            "DDPMWuerstchenScheduler",
            "EulerAncestralDiscreteScheduler",
            "FlowMatchLCMScheduler",
            "LCMScheduler",
            "SCMScheduler",
            "TCDScheduler",
        ),
        _NATIVE,
    ),
}
_SCHEDULES_WITH_END = ("SCMScheduler", "DDPMWuerstchenScheduler")
"""Their timesteps end with the 0 that the last step arrives at."""


def family_of(scheduler: Any) -> Family:
    """The family of a scheduler.

    Raises:
        UnsupportedError: it has none; the message says why and what to use instead.
    """
    name = type(scheduler).__name__
    if why := refusal(scheduler):
        raise UnsupportedError(f"{name} cannot be trained through: {why}")
    config = scheduler.config
    if name in _SOLVERS and config.prediction_type == "flow_prediction":
        return _FLOW
    if _FAMILIES[name] is _FLOW and config.get("sigma_max", 0) > 1:  # Cosmos: the step of a flow, the x of noise
        return _VE
    return _INVERTED_FLOW if config.get("invert_sigmas") else _FAMILIES[name]


def noised_family(scheduler: Any) -> Noised:
    """The family of a scheduler whose latents hold a known amount of noise.

    Raises:
        UnsupportedError: it draws its noise itself and does not say how much.
    """
    family = family_of(scheduler)
    if isinstance(family, NativeFamily):
        raise UnsupportedError(f"{type(scheduler).__name__} does not say how much noise its latents hold: set another "
                               "policy.scheduler, such as DDIMScheduler for models that predict noise")  # fmt: skip
    return cast(Noised, family)


def covered_schedulers() -> tuple[str, ...]:
    """The classes that have a family."""
    return tuple(_FAMILIES)


def refusal(scheduler: Any) -> str | None:
    """Why a scheduler cannot be trained through, or None."""
    name, config = type(scheduler).__name__, scheduler.config
    if name not in _FAMILIES:
        return (f"its family is not covered (covered: {', '.join(_FAMILIES)}). For a model that predicts noise or v, "
                "set policy.scheduler=DDIMScheduler")  # fmt: skip
    prediction = config.get("prediction_type", "epsilon")
    if prediction == "flow_prediction" and not config.get("use_flow_sigmas"):
        return "its model predicts a flow, but use_flow_sigmas is off"
    if _FAMILIES[name] is not _NATIVE and prediction not in ("flow_prediction", "epsilon", "v_prediction", "sample"):
        return f"prediction_type {prediction} is not known here"
    if config.get("stages", 1) != 1:
        return "its stages draw noise anew between resolutions"
    if config.get("stochastic_sampling") or str(config.get("algorithm_type", "")).startswith("sde"):
        return "it is set to draw noise of its own: leave that off and choose a transition"
    if config.get("thresholding") and _FAMILIES[name] is not _NATIVE:
        return "thresholding couples the pixels of a step, which leaves it without a Gaussian mean"
    if config.get("rescale_betas_zero_snr") and _FAMILIES[name] is _VP and prediction == "epsilon":
        return "at zero terminal SNR the noise says nothing of the picture: predict v or the picture"
    if config.get("rescale_betas_zero_snr") and _FAMILIES[name] in (_VE, _VP_SOLVER):
        return "zero terminal SNR has no ratio of noise to signal: set policy.scheduler=DDIMScheduler"
    if str(config.get("variance_type", "")).startswith("learned") and _FAMILIES[name] is _NATIVE:
        return "its variance is learned: a step's noise would be trained away, not its mean"
    return None


def check_transition(config: TransitionConfig, family: Family) -> None:
    """Raise ConfigError if this family of schedulers has no such transition."""
    if config.name not in family.transitions:
        raise ConfigError(f"sampling.transition.name: {config.name} does not fit the pipeline's scheduler, which is of "
                          f"the {family.name} family: choose {', '.join(family.transitions)}")  # fmt: skip


def velocity_gain(family: Family, transition: Transition, step: StepLike) -> float | None:
    """|d mean / d output|: how far a step's mean moves with the model's output. None: only the scheduler knows.

    Means are linear in x and in the output, so it is the mean of a small output at x = 0.
    """
    if isinstance(transition, Native):
        return None
    unit, none = torch.full((1, 1), 1e-3), torch.zeros(1, 1)  # small: some models clip their x_0
    probe = _Probe(unit, none, step.index, step.levels)
    with torch.no_grad():
        mean, _ = family.moments(transition, probe)
    return abs(mean.item()) / 1e-3


@dataclass
class _Probe:
    """A step at which a family's moments are asked for, and nothing else."""

    output: Tensor
    sample: Tensor
    index: int
    levels: Levels

    def with_noise(self, noise: float) -> Tensor:
        raise TypeError("only a scheduler's own step has noise of its own")


def _share(ratio: float) -> float:
    return ratio / (1 + ratio**2) ** 0.5


def _training_shares(scheduler: Any) -> Tensor:
    """[T] float64: the share of noise, sqrt(1 - signal²), at every timestep of a variance-preserving model's training.

    Raises:
        UnsupportedError: the model was not trained at numbered timesteps (Cosmos), or is told its level in another way
            (Stable Video Diffusion).
    """
    kept = getattr(scheduler, "alphas_cumprod", None)
    if kept is None or scheduler.config.get("timestep_type") == "continuous":
        raise UnsupportedError(f"{type(scheduler).__name__} does not say which noise levels its model was trained at")
    return (1 - kept.cpu().double()).sqrt()


def _flow_level(share: Tensor) -> Tensor:
    """A flow's noise level of the same ratio of noise to signal as a share of noise, sqrt(1 - signal²), has."""
    return share / (share + (1 - share**2).sqrt())


def _fill(scheduler: Any, timestep: float, sigma: float) -> None:
    """One timestep throughout, and `sigma` where the scheduler has any."""
    timesteps = scheduler.timesteps
    steps = max(2, len(timesteps))  # the first hands over x_t
    scheduler.timesteps = torch.full((steps,), timestep, dtype=timesteps.dtype, device=timesteps.device)
    if hasattr(scheduler, "sigmas"):
        sigmas = scheduler.sigmas
        scheduler.sigmas = torch.full((steps + 1,), sigma, dtype=sigmas.dtype, device=sigmas.device)
        scheduler.set_begin_index(0)  # equal timesteps cannot be told apart by value


def _step_index(scheduler: Any, timestep: Any) -> int:
    if scheduler.step_index is None:
        scheduler._init_step_index(timestep)
    return int(scheduler.step_index)


def _nearest_timestep(scheduler: Any, timestep: Any) -> int:
    wanted = torch.as_tensor(timestep).flatten()[0].cpu().double()  # some pipelines hand in one a row
    return int((scheduler.timesteps.cpu().double() - wanted).abs().argmin())


# Another scheduler for a pipeline: some ship with one that cannot be trained through.


def scheduler_class(name: str) -> Any:
    """A scheduler of diffusers by its class's name.

    Raises:
        ConfigError: there is none of this name.
    """
    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, SchedulerMixin) and found is not SchedulerMixin):
        known = [each for each in dir(diffusers) if each.endswith("Scheduler")]
        near = [each for each in known if each.removesuffix("Scheduler") == name] or get_close_matches(name, known, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"policy.scheduler: {name} is no scheduler of diffusers {diffusers.__version__}{hint}")
    return found


def exchanged(scheduler: Any, name: str) -> Any:
    """A scheduler of another class with the settings of the one that a pipeline came with.

    Clipping is no setting to inherit by default: DDIM clips x_0 to [-1, 1] unless told not to, which latents exceed.
    """
    kind, config = scheduler_class(name), scheduler.config
    clips = "clip_sample" in inspect.signature(kind.__init__).parameters
    return kind.from_config(config, **({"clip_sample": config.get("clip_sample", False)} if clips else {}))
