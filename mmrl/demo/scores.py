"""Rewards of generated answers: those that the run trained on, and held-out ones."""

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
from mmrl.demo.error_handling import error_text
from mmrl.errors import ConfigError
from mmrl.rewards import RewardContext, RewardError, reward_input
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.routing import SharedLoader


@dataclass(frozen=True)
class AnswerScores:
    """The rewards of one answer."""

    values: dict[str, float] = field(default_factory=dict)  # NaN where it could not be scored
    reasons: dict[str, str] = field(default_factory=dict)  # of scores whose status is not ok


class DemoScorer:
    """A scorer for all users, one batch at a time; each reward model is in memory once."""

    def __init__(self, configs: Sequence[TrainConfig]) -> None:
        self._configs = configs
        self._load, self._lock = SharedLoader(), threading.Lock()
        own = {chosen.name for config in configs for chosen in config.rewards}
        self.heldout = tuple(
            dict.fromkeys(name for config in configs for name in config.evaluation.rewards if name not in own)
        )
        """The names of rewards that no run trained on."""

    def score(self, sample: Sample, media: Sequence[Any], tokens: Sequence[Any]) -> tuple[list[AnswerScores], str]:
        """Return the rewards of each answer to a sample, and a note: the reason if there are none, else empty."""
        config = self._configs[0]
        if not config.rewards and not sample.rewards:
            return [
                AnswerScores() for _ in media
            ], "There is no reward for this prompt: it is no sample of the run's data."
        others = [r.name for each in self._configs[1:] for r in each.rewards]
        extra = [n for n in dict.fromkeys([*others, *self.heldout]) if n not in {r.name for r in config.rewards}]
        with self._lock:
            try:
                inputs = [
                    reward_input(sample, generated, group=0, id=f"{sample.id}/{row}", tokens=written)
                    for row, (generated, written) in enumerate(zip(media, tokens, strict=True))
                ]
                with closing(build_rewards(config, [sample], self._load, monitored=extra)) as suite:
                    output = suite.score(inputs, RewardContext(progress=1.0))
            except (RewardError, ConfigError, OSError) as err:
                return [AnswerScores() for _ in media], f"Rewards cannot be computed: {error_text(err)}"
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
            if len(sample.rewards or config.rewards) == 1:
                values.pop("total", None)  # it repeats the only trained reward
            found.append(AnswerScores(values, reasons))
        failed = bool(found) and all(math.isnan(value) for each in found for value in each.values.values())
        return found, "None of the rewards can score this prompt: choose one of the run's." if failed else ""


def _reason(status: Status, detail: Any) -> str:
    text = error_text(ValueError(detail)) if isinstance(detail, str) and detail else ""
    return f"{status.value}: {text}" if text else status.value
