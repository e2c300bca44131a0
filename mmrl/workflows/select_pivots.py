"""Pivots of recorded traces: steps at which a policy sometimes does what was recorded (PivotRL, arXiv:2603.21383).

At each step of each trace, after the recorded steps before it, the policy writes `data.group_size` single actions.
Where all of them count, or none does, a group's advantages are 0, and nothing would be learnt.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from mmrl.build.datasets import load_samples
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.data.sources import write_source
from mmrl.environments.recorded_steps import each_step
from mmrl.errors import ConfigError, DataError
from mmrl.workflows.played_episodes import Progress, no_progress, played_episodes

RATE = "success_rate"
"""The key in `Sample.metadata` of the share of a step's actions that counted."""


@dataclass(frozen=True)
class StepRates:
    """The steps of traces, with the share of the policy's actions that counted."""

    steps: tuple[Sample, ...]
    rates: tuple[float, ...]

    def pivots(self, below: float) -> list[Sample]:
        """Return the steps whose rate lies above 0 and below `below`, with the rate in their metadata."""
        return [
            replace(step, metadata={**step.metadata, RATE: round(rate, 4)})
            for step, rate in zip(self.steps, self.rates, strict=True)
            if 0 < rate < below
        ]


def measure_steps(config: TrainConfig, progress: Progress = no_progress) -> StepRates:
    """Let the policy of a configuration act once at every step of the traces in `data.path`.

    Raises:
        ConfigError: the configuration has not the environment `recorded`.
        DataError: a sample is no recorded trace.
    """
    if config.environment is None or config.environment.name != "recorded":
        raise ConfigError("environment.name: pivots are steps of recorded traces: set it to recorded")
    steps = [step for trace in load_samples(config.data.path, config.media) for step in each_step(trace)]
    matches: dict[str, list[bool]] = defaultdict(list)
    for sample, episode in played_episodes(config, steps, progress):
        matches[sample.id].append(bool(episode.outcome["success"]))
    known = [step for step in steps if matches[step.id]]
    return StepRates(tuple(known), tuple(sum(matches[step.id]) / len(matches[step.id]) for step in known))


def write_pivots(pivots: list[Sample], path: Path) -> None:
    """Write pivots, whose media are named relative to the file.

    Raises:
        DataError: there are none.
    """
    if not pivots:
        raise DataError(f"{path}: not written, since at no step did some of the actions count and some not")

    write_source(pivots, path)
