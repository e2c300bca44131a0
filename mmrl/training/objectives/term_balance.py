"""Rules for the weights of a mix's terms while training: by imitation's gradient (SASR), a meta-gradient (AMFT) and
volatility (RECAP)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.several_rewards import learned_weight


@dataclass(frozen=True)
class TermSignals:
    """The facts of one update about the terms that were computed in it, by the number of the term."""

    gradients: Mapping[int, Sequence[Tensor | None]]  # of each parameter that is trained, before any weight
    norms: Mapping[int, float]  # of these gradients
    costs: Mapping[int, float]  # each term's loss; of one with an advantage, the best reward less the mean
    entropy: float | None = None  # of the policy's decisions, where the leading term measures it


class TermBalance(ABC):
    """A rule for the weights of the terms in each update, from what was seen in earlier ones."""

    @abstractmethod
    def factors(self, seed: int) -> list[float]:
        """Return the factor on the weight of each term in an update with this seed."""

    @abstractmethod
    def observe(self, signals: TermSignals) -> None:
        """Take note of an update."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run needs; nothing before the first update."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""


BALANCE_STREAM = 6
"""The number of the random stream that decides between the terms."""


class ImitationBalance(TermBalance):
    """Decides in each update whether it imitates: with the probability |g| / (|g| + gamma |g0|).

    |g| is the norm of the last gradient of imitation, and |g0| that of the first, after the warm-up: while imitation
    still teaches as much as then, half of the updates imitate (gamma 1), and fewer as it is learnt
    (SASR, arXiv:2505.13026). The first update imitates.
    """

    def __init__(self, gamma: float, imitation: int = 1) -> None:
        """`imitation` is the number of the term that imitates, 0 or 1."""
        self._gamma, self._imitation = gamma, imitation
        self._first: float | None = None
        self._last = 0.0

    @property
    def probability(self) -> float:
        """The probability that the next update imitates."""
        if self._first is None:
            return 1.0
        total = self._last + self._gamma * self._first
        return self._last / total if total else 0.0

    def imitates(self, seed: int) -> bool:
        """Return whether an update imitates; the decision follows from its seed."""
        return bool(np.random.default_rng((seed, BALANCE_STREAM)).random() < self.probability)

    def factors(self, seed: int) -> list[float]:
        """Return 1 for the term that an update takes, and 0 for the other."""
        chosen = self._imitation if self.imitates(seed) else 1 - self._imitation
        return [float(number == chosen) for number in range(2)]

    def observe(self, signals: TermSignals) -> None:
        """Take note of the norm of a gradient of imitation, where the update imitated."""
        norm = signals.norms.get(self._imitation)
        if norm is not None:
            self._first = norm if self._first is None else self._first
            self._last = norm

    def state_dict(self) -> dict[str, Tensor]:
        """Return the two norms; nothing before the first."""
        if self._first is None:
            return {}
        return {"norms": torch.tensor([self._first, self._last], dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if "norms" in state:
            self._first, self._last = state["norms"].tolist()


class MetaGradientBalance(TermBalance):
    """The weights mu of imitation and 1 - mu of reinforcement, where mu follows the gradient of later rewards.

    An update moves the parameters along -((1 - mu) g_rl + mu g_sft), so a larger mu would have moved them along
    g_rl - g_sft. With the next update's g_rl, minus the gradient of the reward of answers that this one has not seen,
    the derivative of that reward by mu is the inner product of g_rl(t + 1) and g_sft(t) - g_rl(t), in the direction of
    plain gradient descent. mu moves by `rate` times the cosine of the two, and by `entropy_rate` times what the
    policy's entropy lacks to its target: demonstrations bring back what the policy no longer tries (AMFT,
    arXiv:2508.06944; TSYJ-He/AMFT src/controller/adaptive_weight_controller.py@b4b92a6). There, the gradient is that of
    the cross-entropy of validation data before the update, and the step has the other sign: that loss rises.
    """

    def __init__(
        self,
        imitation: int,
        *,
        start: float,
        rate: float,
        entropy_rate: float,
        entropy: float | None,
        least: float,
        most: float,
    ) -> None:
        """
        Args:
            imitation: the number of the term that imitates, 0 or 1.
            start: mu in the first update, within [least, most].
            rate: the largest change of mu in an update by the meta-gradient.
            entropy_rate: the change of mu for each nat that the entropy lacks to its target.
            entropy: the target; None: the entropy in the first update.
            least: the smallest mu.
            most: the largest mu.
        """
        self._imitation, self.mu, self._rate = imitation, start, rate
        self._entropy_rate, self._target, self._least, self._most = entropy_rate, entropy, least, most
        self._difference: list[Tensor] | None = None  # g_sft - g_rl of the last update

    def factors(self, seed: int) -> list[float]:
        """Return mu for the term that imitates, and 1 - mu for the other."""
        return [self.mu if number == self._imitation else 1 - self.mu for number in range(2)]

    def observe(self, signals: TermSignals) -> None:
        """Move mu by what the update before has done for the answers of this one."""
        reinforced = signals.gradients.get(1 - self._imitation)
        imitated = signals.gradients.get(self._imitation)
        if reinforced is not None and self._difference is not None:
            now = [torch.zeros_like(b) if a is None else a for a, b in zip(reinforced, self._difference, strict=True)]
            self.mu = learned_weight(self.mu, now, self._difference, self._rate, self._most)
        if signals.entropy is not None:
            self._target = signals.entropy if self._target is None else self._target
            self.mu += self._entropy_rate * (self._target - signals.entropy)
        self.mu = min(self._most, max(self._least, self.mu))
        if reinforced is not None and imitated is not None:
            self._difference = _difference(imitated, reinforced)

    def state_dict(self) -> dict[str, Tensor]:
        """Return mu, the target of the entropy, and the difference of the last two gradients."""
        target = float("nan") if self._target is None else self._target
        state = {"mu": torch.tensor([self.mu, target], dtype=torch.float64)}
        return state | {f"difference.{place}": each for place, each in enumerate(self._difference or ())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if "mu" not in state:
            return
        self.mu, target = state["mu"].tolist()
        self._target = None if target != target else target
        places = range(sum(name.startswith("difference.") for name in state))
        self._difference = [state[f"difference.{place}"] for place in places] or None


def _difference(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor]:
    """Return one - other by parameter; a part that is None counts as 0."""
    found = []
    for a, b in zip(one, other, strict=True):
        if a is None and b is None:
            found.append(torch.zeros(()))
        elif a is None:
            found.append(-b.detach())  # type: ignore[union-attr]
        else:
            found.append(a.detach().clone() if b is None else (a - b).detach())
    return found


FLOOR = 0.1
"""The share of a term's first cost that is added to every mean, so that costs near 0 are saturated and not volatile."""


class VolatilityBalance(TermBalance):
    """Weights by how much each term's cost still changes: K softmax((trend + spread) / temperature) for K terms.

    The window of the last updates has an earlier and a later half, of means m and n. `trend` is n / m, below 1 while
    the term is learnt and above 1 while it is forgotten, and `spread` the standard deviation of the later half over
    m + n (RECAP, arXiv:2510.21978, equation 1). All weigh the same until half a window was seen. A term with an
    advantage has no loss that falls: its cost is the best reward of an answer so far less the mean one. The floor of
    the means is the suite's.
    """

    def __init__(self, terms: int, window: int, temperature: float) -> None:
        """
        Args:
            terms: the number of terms, K.
            window: the updates that signals are taken from, two or more.
            temperature: the larger, the closer all weights are to 1.
        """
        self._window, self._temperature = window, temperature
        self._costs: list[list[float]] = [[] for _ in range(terms)]
        self._first = [math.nan] * terms

    def factors(self, seed: int) -> list[float]:
        """Return K factors with a sum of K."""
        if any(len(costs) < max(2, self._window // 2) for costs in self._costs):
            return [1.0] * len(self._costs)
        scores = np.array([
            change_of(costs, FLOOR * abs(first)) / self._temperature
            for costs, first in zip(self._costs, self._first, strict=True)
        ])  # fmt: skip
        odds = np.exp(scores - scores.max())
        return [float(each) for each in len(odds) * odds / odds.sum()]

    def observe(self, signals: TermSignals) -> None:
        """Append the costs of an update."""
        for number, cost in signals.costs.items():
            if math.isnan(self._first[number]):
                self._first[number] = cost
            self._costs[number] = [*self._costs[number], cost][-self._window :]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the costs in the window of each term, and the first ones."""
        kept = {f"costs.{k}": torch.tensor(each, dtype=torch.float64) for k, each in enumerate(self._costs) if each}
        return kept | ({"first": torch.tensor(self._first, dtype=torch.float64)} if kept else {})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for number in range(len(self._costs)):
            self._costs[number] = state[f"costs.{number}"].tolist() if f"costs.{number}" in state else []
        if "first" in state:
            self._first = state["first"].tolist()


def change_of(costs: Sequence[float], floor: float) -> float:
    """Return the trend plus the spread of costs >= 0; 1 for costs that stay as they are, or stay below `floor`.

    >>> change_of([2.0, 2.0, 2.0, 2.0], 0.0)
    1.0
    >>> change_of([2.0, 2.0, 1.0, 1.0], 0.0) < change_of([1.0, 1.0, 2.0, 2.0], 0.0)
    True
    """
    half = len(costs) // 2
    values = np.asarray(costs, dtype=np.float64)
    earlier, later = np.split(values, [len(values) - half])
    before, now = earlier.mean() + floor, later.mean() + floor
    if before <= 0:
        return 1.0
    return float(now / before + later.std() / (before + now))
