"""Rewards of what was made: those that the run trained on, and those that it only watched."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from mmrl.build.reward_suites import build_rewards
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.demo.error_handling import told
from mmrl.errors import ConfigError
from mmrl.rewards import RewardContext, RewardError, reward_input
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.routing import SharedLoader


@dataclass(frozen=True)
class Scored:
    """The rewards of one answer."""

    values: dict[str, float] = field(default_factory=dict)  # NaN where it could not be scored
    why: dict[str, str] = field(default_factory=dict)  # of those that are no ordinary score


class Judges:
    """Scores for all visitors, one batch at a time; a model that rewards is in memory once."""

    def __init__(self, configs: Sequence[TrainConfig]) -> None:
        self._configs = configs
        self._load, self._lock = SharedLoader(), threading.Lock()
        own = {chosen.name for config in configs for chosen in config.rewards}
        self.watched = tuple(
            dict.fromkeys(name for config in configs for name in config.evaluation.rewards if name not in own)
        )
        """Names of rewards that no run trained on."""

    def score(self, sample: Sample, media: Sequence[Any], tokens: Sequence[Any]) -> tuple[list[Scored], str]:
        """The rewards of each answer to a sample, and a note where there are none for a reason."""
        config = self._configs[0]
        if not config.rewards and not sample.rewards:
            return [Scored() for _ in media], "Nothing says how this is scored: it is no sample of the run's data."
        others = [r.name for each in self._configs[1:] for r in each.rewards]
        extra = [n for n in dict.fromkeys([*others, *self.watched]) if n not in {r.name for r in config.rewards}]
        with self._lock:
            try:
                inputs = [
                    reward_input(sample, made, group=0, id=f"{sample.id}/{row}", tokens=written)
                    for row, (made, written) in enumerate(zip(media, tokens, strict=True))
                ]
                with closing(build_rewards(config, [sample], self._load, watched=extra)) as suite:
                    output = suite.score(inputs, RewardContext(progress=1.0))
            except (RewardError, ConfigError, OSError) as err:
                return [Scored() for _ in media], f"Rewards cannot be given: {told(err)}"
        found = []
        for row in range(len(media)):
            values, reasons = {}, {}
            for name, column in output.values.items():
                status = output.status[name][row]
                if status == Status.NOT_APPLICABLE:
                    continue
                values[name] = float(column[row])
                if status != Status.OK:
                    reasons[name] = _reason(status, output.detail[row].get(name))
            found.append(Scored(_without_echo(values, len(sample.rewards or config.rewards)), reasons))
        failed = bool(found) and all(math.isnan(value) for each in found for value in each.values.values())
        return found, "None of the rewards can judge this prompt: choose one of the run's." if failed else ""


def _reason(status: Status, detail: Any) -> str:
    said = told(ValueError(detail)) if isinstance(detail, str) and detail else ""
    return f"{status.value}: {said}" if said else status.value


def _without_echo(values: dict[str, float], trained: int) -> dict[str, float]:
    """Without a total that repeats the only reward that was trained on."""
    return {name: value for name, value in values.items() if name != "total"} if trained == 1 else values
