"""`TermBalance`, the base of everything that moves the weights of a mix's terms while training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


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
