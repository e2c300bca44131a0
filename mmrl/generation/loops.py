"""The three things that can happen in a pipeline's denoising loop: it is recorded, replayed, or asked for a velocity.

Each watches the same two events: a denoiser is called, and the scheduler takes a step. Pipelines run under
`torch.no_grad`; a loop that wants gradients turns them on when the denoiser is called and off when its step is done,
so that everything between, such as guidance, is differentiated and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.config.sampling import SamplingConfig
from mmrl.generation.errors import GenerationError, UnsupportedError
from mmrl.generation.families import Family, FlowFamily, check_transition
from mmrl.generation.recording import Recording
from mmrl.generation.scheduler_hook import Step
from mmrl.generation.seeds import stream_seed
from mmrl.generation.tree import outline, zeros
from mmrl.generation.windows import draw_window
from mmrl.policy import Decisions, Visit


class LeavePipeline(BaseException):
    """All that was wanted is computed: the rest of the pipeline's call is not. No error, hence no Exception."""


class Loop:
    """Counts steps and the denoiser calls of each. A step is over when the next denoiser call begins."""

    def __init__(self) -> None:
        self.step = 0
        self.calls = 0
        self._stepped = False
        self._with_grad = torch.is_grad_enabled()

    def on_denoiser_call(self) -> None:
        """A denoiser is about to be called."""
        if self._stepped:
            self.step, self.calls, self._stepped = self.step + 1, 0, False
        torch.set_grad_enabled(self._with_grad and self.is_trained())

    def on_denoise(self, compute: Callable[[], Any]) -> Any:
        """Answer a denoiser call."""
        answer = self.denoise(compute)
        self.calls += 1
        return answer

    def on_step(self, step: Step) -> Tensor:
        """Answer a step of the scheduler."""
        if self._stepped or not self.calls:
            raise UnsupportedError("the pipeline took two scheduler steps for one denoiser call, or called a denoiser "
                                   "that is not known: neither can be replayed")  # fmt: skip
        self._stepped = True
        following = self.advance(step)
        torch.set_grad_enabled(False)
        return following

    def on_schedule(self, scheduler: Any, family: Family) -> None:
        """A schedule was set."""

    def is_trained(self) -> bool:
        """Whether this step is computed with gradients, if the caller wants any."""
        return False

    def denoise(self, compute: Callable[[], Any]) -> Any:
        """The denoiser's answer."""
        raise NotImplementedError

    def advance(self, step: Step) -> Tensor:
        """x'."""
        raise NotImplementedError


class RecordLoop(Loop):
    """Samples, and writes down what replays need."""

    def __init__(self, recording: Recording, sampling: SamplingConfig) -> None:
        super().__init__()
        self.recording, self.sampling = recording, sampling
        self.log_probs: list[Tensor] = []
        self.clean: Tensor | None = None
        self._explorer: torch.Generator | None = None
        self._last_replayed = 0  # of a rollout without decisions: its second step is the probe

    def denoise(self, compute: Callable[[], Any]) -> Any:
        answer = compute()
        if self.calls == 0:
            self.recording.outlines.append([])
        self.recording.outlines[self.step].append(outline(answer))
        return answer

    def advance(self, step: Step) -> Tensor:
        if self.step == 0:
            self._plan(step)
        if self.step in self.recording.decisions:
            following = self._explore(step)
        elif self.recording.transition is None:
            following = step.own()
        else:
            mean, _ = step.family.deterministic(step.scheduler).moments(*_operands(step))
            following = mean.to(step.sample.dtype)
        if not self.recording.decisions and self.step <= 1:
            self.recording.probe = (self.step, step.output.detach().clone())
        self.clean = following.clone()  # pipelines may change in place what they are handed
        if self.step <= self._last_replayed:
            self.recording.next_latents.append(self.clean)
        return following

    def _plan(self, step: Step) -> None:
        """Now the loop's length is known, which `strength` arguments shorten: decide which steps explore."""
        config, recording = self.sampling.transition, self.recording
        check_transition(config, step.family)
        if config.name == "ode" or config.noise_level == 0:
            return
        recording.transition = step.family.transition(config, step.scheduler, step.levels)
        steps = len(step.levels) - step.index
        recording.decisions = tuple(draw_window(self.sampling.window, steps, recording.shared_seed))
        self._last_replayed = max(recording.decisions, default=0)
        device = step.sample.device
        self._explorer = torch.Generator(device).manual_seed(stream_seed(recording.seed, "explore"))

    def _explore(self, step: Step) -> Tensor:
        transition = self.recording.transition
        assert transition is not None
        mean, std = transition.moments(*_operands(step))
        noise = torch.randn(mean.shape, generator=self._explorer, device=mean.device)
        following = (mean + std * noise).to(step.sample.dtype)
        self.log_probs.append(transition.log_prob(following.float(), mean, std))
        return following


class ReplayLoop(Loop):
    """Fast-forwards: the past is played back, and only the steps that are asked for are computed."""

    def __init__(self, recording: Recording, columns: Sequence[int], visit: Visit) -> None:
        super().__init__()
        self.recording, self.visit = recording, visit
        self._column_of = {recording.decisions[column]: column for column in columns}
        self._last = max(self._column_of)

    def is_trained(self) -> bool:
        return self.step in self._column_of

    def denoise(self, compute: Callable[[], Any]) -> Any:
        return compute() if self.is_trained() else zeros(self.recording.outline_of(self.step, self.calls))

    def advance(self, step: Step) -> Tensor:
        following = self.recording.next_latents[self.step]
        if self.is_trained():
            self.visit(self._decisions(step, following))
            if self.step == self._last:
                raise LeavePipeline
        return following.clone()

    def _decisions(self, step: Step, following: Tensor) -> Decisions:
        transition = self.recording.transition
        assert transition is not None
        mean, std = transition.moments(*_operands(step))
        log_prob = transition.log_prob(following.float(), mean, std)
        return Decisions(
            columns=(self._column_of[self.step],),
            log_probs=log_prob[:, None],
            mean=mean[:, None],
            std=torch.as_tensor(std, dtype=torch.float32, device=mean.device).reshape(-1, 1).expand(len(mean), 1),
            velocity=step.output[:, None],
        )


class ProbeLoop(Loop):
    """Fast-forwards to one step and takes its model output: the gauge of rollouts without decisions."""

    def __init__(self, recording: Recording, probe: int) -> None:
        super().__init__()
        self.recording, self._probe = recording, probe
        self.output: Tensor | None = None

    def denoise(self, compute: Callable[[], Any]) -> Any:
        return compute() if self.step == self._probe else zeros(self.recording.outline_of(self.step, self.calls))

    def advance(self, step: Step) -> Tensor:
        if self.step == self._probe:
            self.output = step.output
            raise LeavePipeline
        return self.recording.next_latents[self.step].clone()


class VelocityLoop(Loop):
    """Asks for the model's output at any (x_t, sigma), as the pipeline would use it.

    Every step of the schedule is set to sigma. The steps before the one that would have come nearest to sigma are
    not computed, the last of them hands over x_t, and that one's output is taken: guidance that depends on the step's
    number (skipped layers, truncation) is what the sampler would apply at this noise level.
    """

    def __init__(self, recording: Recording, noisy: Tensor, sigma: float) -> None:
        super().__init__()
        self.recording, self.noisy, self.sigma = recording, noisy, sigma
        self.velocity: Tensor | None = None
        self._target = 1
        self._nearest = 1

    def is_trained(self) -> bool:
        return self.step == self._target

    def on_schedule(self, scheduler: Any, family: Family) -> None:
        if not isinstance(family, FlowFamily):
            raise UnsupportedError(f"velocities at any noise level need a flow model; {type(scheduler).__name__} is of "
                                   f"the {family.name} family")  # fmt: skip
        self._nearest = family.hold(scheduler, self.sigma)

    def denoise(self, compute: Callable[[], Any]) -> Any:
        return compute() if self.is_trained() else zeros(self.recording.outline_of(self.step, self.calls))

    def advance(self, step: Step) -> Tensor:
        if self.step == 0:
            self._target = max(1, self._nearest - step.index)
            if step.sample.shape != self.noisy.shape:
                raise GenerationError(f"noisy is {list(self.noisy.shape)}, the pipeline's latents are "
                                      f"{list(step.sample.shape)}")  # fmt: skip
        if self.is_trained():
            self.velocity = step.output
            raise LeavePipeline
        return self.noisy.to(step.sample.dtype)


def _operands(step: Step) -> tuple[Tensor, Tensor, float, float]:
    sigma, sigma_next = step.levels[step.index]
    return step.sample.float(), step.output.float(), sigma, sigma_next
