"""`AngleSampler`: prompts by the angle concentration of the base model, from the highest on (GAIN-RL)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrl.data.prompts import Outcome, PromptSource, check_enough, found_by_id
from mmrl.data.sample import Sample
from mmrl.errors import DataError

ANGLE = "angle"
"""The key in `Sample.metadata` of the angle concentration of a prompt, which `mmrl data angles` measures."""


class AngleSampler(PromptSource):
    """A prompt source that draws around a place in the ranking of the prompts by angle (GAIN-RL, arXiv:2506.02281).

        sampler = AngleSampler(samples, groups=8, seed=0, width=0.13, step=0.13)

    Samples are ranked from the highest angle concentration to the lowest. Each iteration draws without replacement,
    with probabilities by a normal density over ranks, whose mean is 0 at first. Every `every` iterations the mean moves
    by step N / 2 (tanh(sensitivity (accuracy - target)) + tanh(sensitivity angle)), between 0 and step N ranks, where
    accuracy and angle are the means over the prompts since the last move, and N is the number of samples.

    Differences from the paper: angles are those of the base model, where the paper measures them again on the prompts
    that it trains on; widths and steps are shares of the data set; the mean stays within the ranking.
    """

    def __init__(
        self,
        samples: Sequence[Sample],  # with unique ids and metadata.angle
        groups: int,  # samples in a batch
        seed: int,
        *,
        width: float = 0.13,  # standard deviation of the density, as a share of all samples
        step: float = 0.13,  # the largest move, as a share of all samples
        every: int = 10,
        target: float = 0.5,  # the mean total reward at which the accuracy has no part in the move
        sensitivity: float = 2.0,
    ) -> None:
        """
        Raises:
            DataError: a sample has no angle, or the samples are fewer than `groups`.
        """
        for sample in samples:
            angle = sample.metadata.get(ANGLE)
            if isinstance(angle, bool) or not isinstance(angle, int | float) or not math.isfinite(angle):
                raise DataError(
                    f"sample {sample.id!r}: metadata.{ANGLE} is {angle!r:.40}, and angle_concentration ranks prompts "
                    "by it: measure it with `mmrl data angles RECIPE --out FILE`, and train with data.path=FILE"
                )
        check_enough(samples, groups)
        self.samples = sorted(samples, key=lambda sample: -float(sample.metadata[ANGLE]))
        self._by_id = {sample.id: sample for sample in samples}
        self._fingerprint = hashlib.sha256("\0".join(each.id for each in self.samples).encode()).hexdigest()
        self._groups, self._seed, self._every = groups, seed, every
        self._width, self._step = width * len(samples), step * len(samples)
        self._target, self._sensitivity = target, sensitivity
        self.mean = 0.0
        self._draws, self._iterations = 0, 0
        self._sums = [0.0, 0.0, 0.0]  # prompts since the last move, their mean totals, their angles
        self._batch: list[int] = []

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self._batch = []
        return self.more(self._groups)

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        self._draws += 1
        rng = np.random.default_rng([self._seed, self._draws])
        ranks = np.arange(len(self.samples))
        # The largest of log-probabilities with Gumbel noise are a draw without replacement, however small they are.
        keys = -0.5 * ((ranks - self.mean) / self._width) ** 2 + rng.gumbel(size=len(ranks))
        keys[self._batch] = -np.inf
        count = min(count, len(ranks) - len(self._batch))
        chosen = np.argsort(-keys, kind="stable")[:count].tolist()
        self._batch += chosen
        return [self.samples[rank] for rank in chosen]

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """
        return found_by_id(self._by_id, id)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Count the rewards and angles of an iteration's prompts, and move the mean where a round is over."""
        for each in outcomes:
            if each.totals:
                added = (1.0, float(np.mean(each.totals)), float(each.sample.metadata[ANGLE]))
                self._sums = [old + new for old, new in zip(self._sums, added, strict=True)]
        self._iterations += 1
        prompts, totals, angles = self._sums
        if self._iterations % self._every == 0 and prompts:
            move = math.tanh(self._sensitivity * (totals / prompts - self._target))
            move += math.tanh(self._sensitivity * angles / prompts)
            self.mean = min(self.mean + self._step * min(max(move / 2, 0.0), 1.0), len(self.samples) - 1.0)
            self._sums = [0.0, 0.0, 0.0]

    def metrics(self) -> dict[str, float]:
        """Return the place of the mean as a share of the ranking, and the mean angle of the iteration's prompts."""
        angles = [float(self.samples[rank].metadata[ANGLE]) for rank in self._batch]
        place = self.mean / max(1, len(self.samples) - 1)
        return {"prompts/place": place} | ({"prompts/angle": float(np.mean(angles))} if angles else {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""
        return {
            "samples": self._fingerprint,
            "seed": self._seed,
            "draws": self._draws,
            "iterations": self._iterations,
            "mean": self.mean,
            "sums": list(self._sums),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to other samples.
        """
        if state["samples"] != self._fingerprint:
            raise DataError("the data set is not the one that the run began with: resume with the same samples")
        self._seed, self._draws = int(state["seed"]), int(state["draws"])
        self._iterations, self.mean = int(state["iterations"]), float(state["mean"])
        self._sums = [float(each) for each in state["sums"]]
