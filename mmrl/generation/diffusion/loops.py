"""The modes of a pipeline's denoising loop: record a rollout, replay decisions, probe a step, predict a velocity.

Each mode handles the same two events: a denoiser is called, and the scheduler takes a step. Pipelines run under
`torch.no_grad`; a loop that computes gradients enables them at the denoiser call and disables them after the step, so
that everything in between, such as guidance, is differentiated and nothing else is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.config.sampling import SamplingConfig
from mmrl.errors import ConfigError, GenerationError, UnsupportedError
from mmrl.generation.diffusion.decisions import draw_window
from mmrl.generation.diffusion.denoiser_hook import Guiders
from mmrl.generation.diffusion.learned_noise import NoiseLevelNetwork, with_learned_noise
from mmrl.generation.diffusion.noise_levels import flow_velocity, from_flow_latents
from mmrl.generation.diffusion.pytree import find_tensor_holder, find_unsupported_leaf, tree_spec, zeros
from mmrl.generation.diffusion.recording import Recording, join, join_log_probs, shared_std, split
from mmrl.generation.diffusion.scheduler_families import (
    SchedulerFamily,
    check_transition,
    make_transition,
    noise_level_family,
    velocity_gain,
)
from mmrl.generation.diffusion.scheduler_hook import SchedulerStep
from mmrl.generation.diffusion.transitions import Level
from mmrl.generation.diffusion.zigzag import ZigzagSteps
from mmrl.policy import DecisionCallback, StepOutputs
from mmrl.seeds import stream_seed


class StopPipeline(BaseException):
    """Raised to end a pipeline's call once the required steps are computed. It is no error, hence no Exception."""


class Loop:
    """A base class that counts steps and the denoiser calls of each. A step ends when the next denoiser call begins."""

    def __init__(self, guiders: Guiders) -> None:
        self.step = 0
        self.calls = 0
        self._guiders = guiders
        self._stepped: list[Any] = []  # the schedulers that have taken this step
        self._with_grad = torch.is_grad_enabled()

    def on_denoiser_call(self) -> None:
        """Count a denoiser call, and enable gradients if its step needs them."""
        if self._stepped:
            self.step, self.calls, self._stepped = self.step + 1, 0, []
        torch.set_grad_enabled(self._with_grad and self.needs_grad())

    def on_denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        """Return the output of a denoiser call."""
        output = self.denoise(compute, arguments)
        self.calls += 1
        return output

    def on_branch(self, compute: Callable[[], Any]) -> Any:
        """Return the output of a network whose output is an input of the next denoiser call."""
        raise NotImplementedError

    @property
    def next_step(self) -> int:
        """The step of the next denoiser call."""
        return self.step + bool(self._stepped)

    def on_step(self, step: SchedulerStep) -> Tensor:
        """Return x' for a step of a scheduler."""
        if not self.calls:
            raise UnsupportedError("the pipeline took a step without calling a known denoiser: it cannot be replayed")
        if any(step.scheduler is each for each in self._stepped):
            raise UnsupportedError("the pipeline took two steps of one scheduler for one denoiser call: they cannot be "
                                   "replayed")  # fmt: skip
        self._stepped.append(step.scheduler)
        return self.advance(step)

    @property
    def latent_stream(self) -> int:
        """The index of the latent stream that the current scheduler step belongs to."""
        return len(self._stepped) - 1

    def on_schedule(self, scheduler: Any, family: SchedulerFamily) -> None:
        """Handle a new schedule."""

    def needs_grad(self) -> bool:
        """Return whether this step is computed with gradients, if they are enabled at all."""
        return False

    def denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        """Return the denoiser's output."""
        raise NotImplementedError

    def advance(self, step: SchedulerStep) -> Tensor:
        """Return x' of a scheduler step."""
        raise NotImplementedError


class RecordLoop(Loop):
    """A loop that samples and fills a recording."""

    def __init__(
        self, guiders: Guiders, recording: Recording, sampling: SamplingConfig, noise: NoiseLevelNetwork | None = None
    ) -> None:
        """`noise` computes the noise level of each step, if that is trained."""
        super().__init__(guiders)
        self.recording, self.sampling, self._noise = recording, sampling, noise
        self._log_probs: list[list[Tensor]] = []  # [decision][stream]
        self._sizes: list[list[int]] = []  # [decision][stream]: the number of latent dimensions
        self._stds: list[Level] = []  # [stream] of the current decision
        self._means: list[list[Tensor]] = []  # [decision][stream], if they are kept
        self._new_schedule = False
        self._last: list[Tensor] = []  # [stream]: x' of the last step
        self._begun: list[Tensor] = []  # [stream]: x of the last step that is undone
        self._strong: float | None = None  # the guidance scale, while it is weaker
        self._noise_generator: torch.Generator | None = None
        self._last_replayed: float = math.inf if recording.keeps_latents else 0  # 0: the probe is step 1

    def on_schedule(self, scheduler: Any, family: SchedulerFamily) -> None:
        self._new_schedule = bool(self._stepped)  # counts if a step follows
        if self.recording.zigzag is not None:
            self.recording.zigzag.lengthen(scheduler, family)

    def on_denoiser_call(self) -> None:
        super().on_denoiser_call()
        zigzag = self.recording.zigzag
        if zigzag is not None and zigzag.undoes(self.step):
            if self._strong is None:
                self._strong = self._guiders.scale
                self._guiders.scale = zigzag.guidance(self._strong)
        elif self._strong is not None:
            self._guiders.scale, self._strong = self._strong, None

    def clean(self) -> Tensor:
        """Return x_0 [B, ...], all streams joined."""
        if not self._last:
            raise UnsupportedError("the pipeline called no scheduler: there is nothing to train")
        return join(self._last)

    def log_probs(self) -> Tensor:
        """Return the log-probabilities of all decisions, [B, T] float32."""
        if not self._log_probs:
            return self.clean().new_zeros(len(self._last[0]), 0, dtype=torch.float32)
        joined = [join_log_probs(each, sizes) for each, sizes in zip(self._log_probs, self._sizes, strict=True)]
        return torch.stack(joined, dim=1)

    def means(self) -> Tensor | None:
        """Return the means of all decisions, [B, T, ...] float32; None if they are not kept or there are none."""
        return torch.stack([join(streams) for streams in self._means], dim=1) if self._means else None

    def denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        output = compute()
        if kind := find_unsupported_leaf(output) or find_tensor_holder(arguments):
            raise UnsupportedError(f"a denoiser keeps a {kind} from step to step, which a replay that skips steps does "
                                   "not have; if the pipeline has an argument that disables it (use_kv_cache: false), "
                                   "set it in sampling.pipeline_args")  # fmt: skip
        if self.calls == 0:
            self.recording.output_specs.append([])
        self.recording.output_specs[self.step].append(tree_spec(output))
        return output

    def on_branch(self, compute: Callable[[], Any]) -> Any:
        output = compute()
        self.recording.branch_specs.append(tree_spec(output))
        return output

    def advance(self, step: SchedulerStep) -> Tensor:
        recording = self.recording
        recording.num_schedules += self._new_schedule
        self._new_schedule = False
        if self.step == self.latent_stream == 0:
            recording.first_index = step.index
            self._plan(step)
        zigzag = recording.zigzag
        if zigzag is not None and zigzag.is_detour(self.step):
            following = self._detour(step, zigzag)
        elif self.step in recording.decisions:
            following = self._explore(step)
        elif recording.draws(self.step):
            following, *_ = self._draw(step)
        elif (recording.transition is None and not recording.keeps_latents and zigzag is None) or (
            deterministic := step.family.deterministic(step.scheduler)
        ) is None:
            following = step.own()
        else:
            mean, _ = step.family.moments(deterministic, step)
            following = mean.to(step.sample.dtype)
        copied = following.clone()  # pipelines may change the returned latents in place
        if self.latent_stream == 0:
            self._last = []
            recording.guidance.append(self._guiders.read())
        self._last.append(copied)
        if not recording.decisions and self.step <= 1:
            others = recording.probe[1] if recording.probe is not None and self.latent_stream else []
            recording.probe = (self.step, [*others, step.output.detach().clone()])
        if self.step <= self._last_replayed:
            if self.latent_stream == 0:
                recording.next_latents.append([])
            recording.next_latents[self.step].append(copied)
        return following

    def _plan(self, step: SchedulerStep) -> None:
        """Choose the transition and the stochastic steps, once the loop's length is known (`strength` shortens it)."""
        config, recording = self.sampling.transition, self.recording
        check_transition(config, step.family)
        if config.name == "ode" or (config.noise_level == 0 and config.name != "native"):
            return
        transition = make_transition(config, step.family, step.scheduler, step.levels)
        recording.transition = with_learned_noise(transition, self._noise)
        steps, zigzag = len(step.levels) - step.index, recording.zigzag
        steps -= 0 if zigzag is None else zigzag.extra
        window = draw_window(self.sampling.window, steps, recording.shared_seed, recording.iteration)
        recording.decisions = tuple(window if zigzag is None else map(zigzag.place, window))
        recording.draws_before = self.sampling.window.before == "noise"
        if any(at >= len(window) for at in recording.branches.config.at):
            raise ConfigError(f"sampling.branch.at: there are {len(window)} decisions, counted from 0, so rows "
                              f"cannot branch at {max(recording.branches.config.at)}")  # fmt: skip
        self._last_replayed = max(self._last_replayed, *recording.decisions, 0)
        device = step.sample.device
        self._noise_generator = torch.Generator(device).manual_seed(stream_seed(recording.seed, "explore"))

    def _detour(self, step: SchedulerStep, zigzag: ZigzagSteps) -> Tensor:
        """Return x' of a step that is undone, or undoes one, along the ODE."""
        deterministic = step.family.deterministic(step.scheduler)
        if deterministic is None or step.index != self.step:
            raise UnsupportedError("sampling.zigzag: the pipeline begins in the middle of its schedule, where no step "
                                   "can be taken twice: leave it out")  # fmt: skip
        mean, _ = step.family.moments(deterministic, step)
        following = mean.to(step.sample.dtype)
        if zigzag.undoes(self.step):
            return zigzag.restart(following, self._begun[self.latent_stream])
        self._begun = [*(self._begun if self.latent_stream else []), step.sample.clone()]
        return following

    def _draw(self, step: SchedulerStep) -> tuple[Tensor, Tensor, Level]:
        """Return x' with the transition's noise, which rows of a branch share, and its mean and spread.

        Raises:
            UnsupportedError: the transition has no noise at this step.
        """
        transition = self.recording.transition
        assert transition is not None
        mean, std = step.family.moments(transition, step)
        if isinstance(std, float) and not std > 0:  # NaN too
            raise UnsupportedError(f"step {self.step + 1} of the pipeline adds no noise under this transition: leave "
                                   "it out of sampling.window, or raise noise_level")  # fmt: skip
        noise = torch.randn(mean.shape, generator=self._noise_generator, device=mean.device)
        drawn = (mean + std * noise).to(step.sample.dtype)
        decision = self.recording.decision_at(self.step)
        return self.recording.branches.expand_to_branches(drawn, decision), mean, std

    def _explore(self, step: SchedulerStep) -> Tensor:
        following, mean, std = self._draw(step)
        transition = self.recording.transition
        assert transition is not None
        if self.latent_stream == 0:
            self._log_probs.append([])
            self._sizes.append([])
            self._stds = []
            if self.recording.keep_means:
                self._means.append([])
        if self.recording.keep_means:
            self._means[-1].append(mean)
        self._stds.append(std)
        shared_std(self._stds)
        self._log_probs[-1].append(transition.log_prob(following.float(), mean, std))
        self._sizes[-1].append(following[0].numel())
        return following


class PartialReplayLoop(Loop):
    """A loop that computes only some steps; the others return the recorded latents, and their denoisers are skipped."""

    def __init__(self, guiders: Guiders, recording: Recording) -> None:
        super().__init__(guiders)
        self.recording = recording
        self._branches = iter(recording.branch_specs)

    def on_schedule(self, scheduler: Any, family: SchedulerFamily) -> None:
        if self.recording.zigzag is not None:
            self.recording.zigzag.lengthen(scheduler, family)

    def is_computed(self, step: int) -> bool:
        """Return whether this step is computed."""
        raise NotImplementedError

    def needs_grad(self) -> bool:
        return self.is_computed(self.step)

    def denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        return compute() if self.is_computed(self.step) else zeros(self.recording.output_spec(self.step, self.calls))

    def on_branch(self, compute: Callable[[], Any]) -> Any:
        spec, is_computed = next(self._branches, None), self.is_computed(self.next_step)
        if spec is not None and not is_computed:
            return zeros(spec)
        with torch.set_grad_enabled(self._with_grad and is_computed):  # it may share trained layers (Z-Image)
            return compute()

    def replay_step(self) -> Tensor:
        """Return the recorded x' of this step, and restore the guiders after its last stream."""
        streams = self.recording.next_latents[self.step]
        if self.latent_stream == len(streams) - 1:
            torch.set_grad_enabled(False)
            self._guiders.write(self.recording.guidance[self.step])
        return streams[self.latent_stream].clone()


class ReplayLoop(PartialReplayLoop):
    """A loop that computes the steps of some decisions and passes each to a callback."""

    def __init__(
        self, guiders: Guiders, recording: Recording, step_indices: Sequence[int], visit: DecisionCallback
    ) -> None:
        super().__init__(guiders, recording)
        self.visit = visit
        self._decision_of = {recording.decisions[index]: index for index in step_indices}
        self._last = max(self._decision_of)
        self._streams: list[_StreamOutputs] = []

    def is_computed(self, step: int) -> bool:
        return step in self._decision_of

    def advance(self, step: SchedulerStep) -> Tensor:
        if self.is_computed(self.step):
            self._streams.append(self._score(step))
            if len(self._streams) == len(self.recording.next_latents[self.step]):
                streams, self._streams = self._streams, []
                self.visit(_step_outputs(self._decision_of[self.step], streams))
                if self.step == self._last:
                    raise StopPipeline
        return self.replay_step()

    def _score(self, step: SchedulerStep) -> _StreamOutputs:
        transition, following = self.recording.transition, self.recording.next_latents[self.step][self.latent_stream]
        assert transition is not None
        mean, std = step.family.moments(transition, step)
        log_prob = transition.log_prob(following.float(), mean, std)
        return _StreamOutputs(
            log_prob, mean, std, step.family.velocity(step), velocity_gain(step.family, transition, step)
        )


class ProbeLoop(PartialReplayLoop):
    """A loop that recomputes the model output of one step, to check the replay of rollouts without decisions."""

    def __init__(self, guiders: Guiders, recording: Recording, probe: int) -> None:
        super().__init__(guiders, recording)
        self.outputs: list[Tensor] = []
        self._probe = probe

    def is_computed(self, step: int) -> bool:
        return step == self._probe

    def advance(self, step: SchedulerStep) -> Tensor:
        if not self.is_computed(self.step):
            return self.replay_step()
        self.outputs.append(step.output)
        if self.recording.probe is not None and len(self.outputs) == len(self.recording.probe[1]):
            raise StopPipeline
        return step.sample


class VelocityLoop(PartialReplayLoop):
    """A loop that computes the guided model output at any (x_t, sigma), as a flow's velocity noise - x_0.

    For models that predict noise, v or x_0, `noisy`, (1 - sigma) x_0 + sigma noise, is converted to their terms and the
    output to a flow's.

    Every step of the schedule is set to sigma. The steps before the one that was nearest to sigma are not computed, the
    last of them returns x_t, and the nearest one's output is the result: guidance that depends on the step number
    (skipped layers, truncation) is what the sampler would apply at this noise level.
    """

    def __init__(self, guiders: Guiders, recording: Recording, noisy: Tensor, sigma: float) -> None:
        super().__init__(guiders, recording)
        self.sigma = sigma
        self.velocity: Tensor | None = None
        self._noisy = split(noisy, recording.next_latents[0])
        self._outputs: list[Tensor] = []
        self._target = 1
        self._nearest = 1

    def is_computed(self, step: int) -> bool:
        return step == self._target

    def on_schedule(self, scheduler: Any, family: SchedulerFamily) -> None:
        self._nearest = noise_level_family(scheduler).set_constant_sigma(scheduler, self.sigma)

    def advance(self, step: SchedulerStep) -> Tensor:
        if self.step == 0:
            self._target = max(1, self._nearest - self.recording.first_index)
            if step.sample.shape != self._noisy[self.latent_stream].shape:
                shape = list(self._noisy[self.latent_stream].shape)
                raise GenerationError(f"noisy is {shape}, the pipeline's latents are {list(step.sample.shape)}")
        last = self.latent_stream == len(self._noisy) - 1
        if self.is_computed(self.step):
            self._outputs.append(flow_velocity(step))
            if last:
                self.velocity = join(self._outputs)
                raise StopPipeline
        elif last:
            self._guiders.write(self.recording.guidance[self.step])
        return from_flow_latents(step, self._noisy[self.latent_stream], self.sigma).to(step.sample.dtype)


@dataclass(frozen=True)
class _StreamOutputs:
    """The outputs of one latent stream at a decision."""

    log_prob: Tensor  # [B]
    mean: Tensor  # [B, ...]
    std: Level
    output: Tensor  # [B, ...]
    gain: float | None


def _step_outputs(decision: int, streams: list[_StreamOutputs]) -> StepOutputs:
    means = [stream.mean for stream in streams]
    std = torch.as_tensor(shared_std([stream.std for stream in streams]), dtype=torch.float32, device=means[0].device)
    if std.ndim > 1:  # a spread of each dimension: their geometric mean, which has the same entropy
        std = std.log().flatten(1).mean(1).exp()
    return StepOutputs(
        step_indices=(decision,),
        log_probs=join_log_probs([stream.log_prob for stream in streams], [mean[0].numel() for mean in means])[:, None],
        mean=join(means)[:, None],
        std=std.reshape(-1, 1).expand(len(means[0]), 1),
        velocity=join([stream.output for stream in streams])[:, None],
        gain=None
        if streams[0].gain is None
        else torch.full((len(means[0]), 1), streams[0].gain, device=means[0].device),
    )
