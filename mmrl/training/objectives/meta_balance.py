"""The weight of imitation by a meta-gradient of the reward, regularised by entropy (AMFT)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.algorithms.several_rewards import learned_weight
from mmrl.training.objectives.term_balance import TermBalance, TermSignals


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
