"""Zigzag sampling: the first denoising steps are taken, undone with weaker guidance, and taken again.

Undoing a step with weaker guidance leaves in the latents what the stronger guidance had put in: the second pass begins
from noise that knows more of the prompt (Z-Sampling, arXiv:2412.10891). MVC-ZigAL (arXiv:2505.20107) teaches a sampler
without the detour what it gains: the reward of a zigzag row, less that of a plain row from the same noise, is the
advantage of both.

The pipeline is called as ever, on a longer schedule: s_0 s_1 s_0 s_1 s_2 ... in place of s_0 s_1 s_2 .... A replay
repeats this schedule, and computes none of the steps that are undone, for they are no decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.config.sampling import ZigzagConfig
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.scheduler_families import NoiseLevelFamily, SchedulerFamily

LEAST_GUIDANCE = 1 + 1e-6
"""The guidance scale in place of 1, which pipelines take for no guidance: they would drop half of the batch."""


@dataclass(frozen=True)
class ZigzagSteps:
    """The steps of a loop in which the first steps of a sampler are taken twice.

    >>> zigzag = ZigzagSteps(ZigzagConfig(steps=2))
    >>> zigzag.levels(3), [zigzag.place(step) for step in range(3)]
    ([0, 1, 0, 1, 2, 1, 2, 3], [2, 5, 6])
    """

    config: ZigzagConfig

    def levels(self, steps: int) -> list[int]:
        """Return the noise levels of the longer loop, as places in a schedule of `steps` steps and its end.

        Raises:
            ConfigError: a step that is taken twice would be the last, whose end has no noise, or lie beyond it.
        """
        twice = self.config.steps
        if twice >= steps:
            raise ConfigError(f"sampling.zigzag.steps: {twice} of the sampler's {steps} steps cannot be taken twice, "
                              "since the last one ends without noise: take fewer, or raise sampling.steps")  # fmt: skip
        return [place for step in range(twice) for place in (step, step + 1, step)] + list(range(twice, steps + 1))

    def lengthen(self, scheduler: Any, family: SchedulerFamily) -> None:
        """Have a scheduler visit the levels of the longer loop.

        Raises:
            UnsupportedError: the schedule is no list of noise levels.
        """
        if not isinstance(family, NoiseLevelFamily) or not hasattr(scheduler, "sigmas"):
            raise UnsupportedError(f"sampling.zigzag: the steps of {type(scheduler).__name__} cannot be undone: set "
                                   "policy.scheduler=DPMSolverMultistepScheduler")  # fmt: skip
        family.visit(scheduler, self.levels(len(scheduler.timesteps)))

    @property
    def extra(self) -> int:
        """The number of steps that the longer loop has more."""
        return 2 * self.config.steps

    def place(self, step: int) -> int:
        """Return the step of the longer loop that takes a step of the sampler for good."""
        return step + 2 * min(step + 1, self.config.steps)

    def is_detour(self, step: int) -> bool:
        """Return whether a step of the longer loop is undone, or undoes one."""
        return step < 3 * self.config.steps and step % 3 < 2

    def undoes(self, step: int) -> bool:
        """Return whether a step of the longer loop undoes the one before it."""
        return step < 3 * self.config.steps and step % 3 == 1

    def guidance(self, scale: float) -> float:
        """Return the guidance scale of the inversion in a pipeline that samples with `scale`.

        Raises:
            ConfigError: it is no weaker.
        """
        weak = max(self.config.guidance_scale, LEAST_GUIDANCE)
        if weak >= scale:
            raise ConfigError(f"sampling.zigzag.guidance_scale: {self.config.guidance_scale} is no weaker than the "
                              f"{scale} of the sampler, so the second pass would repeat the first: raise "
                              "sampling.guidance_scale")  # fmt: skip
        return weak

    def restart(self, undone: Tensor, begun: Tensor) -> Tensor:  # [B, ...] each -> [B, ...]
        """Return the latents before the second pass: `undone` in rows that are refined, `begun` in the others."""
        if self.config.rows == "all":
            return undone
        refined = torch.arange(len(undone), device=undone.device) % 2 == 1
        return torch.where(refined.view(-1, *[1] * (undone.ndim - 1)), undone, begun)
