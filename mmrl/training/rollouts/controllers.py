"""`Controller`, a rule that moves settings between rounds, and the source of rollouts that consults it.

    class Alternate(Controller):
        moves = ("sampling.temperature",)

        def choose(self, probe, round):
            return {"sampling.temperature": (0.8, 1.2)[round % 2]}

A controller keeps no state: what it chose is saved with the run, so that a resumed run goes on with the same settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmrl.config.controller import TEMPERATURE, THRESHOLD, TURNS, WEIGHTS, ControllerConfig
from mmrl.data.mixture_prompts import MixtureSampler
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, ExperienceSource
from mmrl.training.rollouts.collect import CollectedRollouts, GroupSampler, ScoredRollouts
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.rollouts.start_rules import AtTemperature, selection
from mmrl.training.run.timers import Phases

STREAM = 11
"""The number of the random stream of controllers, beside those of the calls of the policy."""


@dataclass(frozen=True)
class ProbeAnswers:
    """A answers to each of P prompts, with their rewards."""

    texts: Sequence[Sequence[str]]  # P of A
    rewards: Mapping[str, NDArray[np.float32]]  # {name: [P, A]}, `total` among them; NaN: could not be scored


Probe = Callable[[float | None], ProbeAnswers]
"""From a temperature, or None for that of the run, to answers of the present policy. The prompts of a round are the
same at each temperature."""


class Controller(ABC):
    """A rule for the settings of a round."""

    moves: ClassVar[Sequence[str]] = ()
    """The keys of the settings: those of `mmrl.config.controller.MOVABLE`, and weights of sources."""

    @abstractmethod
    def choose(self, probe: Probe, number: int) -> Mapping[str, float]:
        """Return a value for each key of `moves`; `number` counts rounds from 0."""


@dataclass(frozen=True)
class Questions:
    """A group sampler of one round, with answers to given prompts."""

    samples: Sequence[Sample]
    answers: int

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return a request for each sample, then none."""
        samples = self.samples if scored is None else ()
        return [RolloutRequest(sample, self.answers, group) for group, sample in enumerate(samples)]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select all rows."""
        return selection(scored)


class ControlledRollouts:
    """A source of rollouts whose settings a controller moves between rounds.

    Metrics: `settings/<key>` of each setting, and in the first iteration of a round `settings/answers`, the number of
    answers of its probes.
    """

    def __init__(
        self,
        source: ExperienceSource,
        online: OnlineRollouts,
        config: ControllerConfig,
        samples: Sequence[Sample],
    ) -> None:
        """`online` is the part of `source` that samples; `samples` are the prompts of probes."""
        self._source, self._online, self._config, self._samples = source, online, config, samples
        self._controller: Controller = config.controller()
        self._values: dict[str, float] = {}
        self._iterations = 0
        self._probed = 0

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Choose the settings of a round before its first iteration, and collect with them."""
        self._probed = 0
        if self._iterations % self._config.every == 0:
            number = self._iterations // self._config.every
            chosen = self._controller.choose(self._probe(iteration, number, progress, phases), number)
            self._values = {name: float(chosen[name]) for name in self._controller.moves}
        self._iterations += 1
        self._apply()
        found = self._source.collect(iteration, progress, phases)
        moved: dict[str, float] = {f"settings/{name}": value for name, value in self._values.items()}
        if self._probed:
            moved["settings/answers"] = float(self._probed)
        return replace(found, metrics={**found.metrics, **moved})

    def state_dict(self) -> dict[str, Any]:
        """Return the settings of the round and the iterations so far, with the state of the source."""
        return {"values": self._values, "iterations": self._iterations, "source": self._source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values, self._iterations = dict(state["values"]), state["iterations"]
        self._source.load_state_dict(state["source"])

    def _apply(self) -> None:
        self._online.temperature = self._values.get(TEMPERATURE)
        if THRESHOLD in self._values:
            estimator = self._online.advantage_estimator
            config = estimator.config.model_copy(update={"min_value": self._values[THRESHOLD]})
            self._online.advantage_estimator = replace(estimator, config=config)
        if TURNS in self._values:
            self._online.horizon = (max(1, round(self._values[TURNS])),)
        moved = {key.removeprefix(WEIGHTS): each for key, each in self._values.items() if key.startswith(WEIGHTS)}
        if moved and isinstance(self._online.prompts, MixtureSampler):
            self._online.prompts.weights = {**self._online.prompts.weights, **moved}

    def _probe(self, iteration: int, number: int, progress: float, phases: Phases) -> Probe:
        seed = fold_in(self._online.seed, STREAM, number)
        order = np.random.default_rng(seed).permutation(len(self._samples))
        chosen = [self._samples[place] for place in order[: self._config.prompts]]

        def probe(temperature: float | None) -> ProbeAnswers:
            collector = replace(self._online.collector(iteration, progress, phases, seed), demonstrations=None)
            sampler: GroupSampler = Questions(chosen, self._config.answers)
            if temperature is not None:
                sampler = AtTemperature(sampler, temperature)
            scored = collector.collect(sampler, self._online.prompts).scored
            rows = [str(text) for rollout in scored.rollouts for text in rollout.media]
            self._probed += len(rows)
            shape = len(chosen), self._config.answers
            order = np.argsort(scored.group_index.numpy(), kind="stable")
            texts = [[rows[row] for row in part] for part in order.reshape(shape)]
            rewards = {name: values[order].reshape(shape) for name, values in scored.output.values.items()}
            return ProbeAnswers(texts, rewards)

        return probe
