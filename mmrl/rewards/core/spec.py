"""The card of a reward: its facts, known before it scores anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

Direction = Literal["higher", "lower"]


class Scope(StrEnum):
    """The number of answers that a reward needs to score one of them."""

    SAMPLE = "sample"
    """A single answer."""
    PAIR = "pair"
    """Two answers to one prompt, compared."""
    GROUP = "group"
    """All answers to one prompt at once."""


@dataclass(frozen=True)
class WeightFile:
    """A file of weights that a reward was built from."""

    path: str  # a local path, or hub id and file name
    sha256: str

    @classmethod
    def of(cls, path: Path) -> WeightFile:
        """Return a local file with its digest."""
        with path.open("rb") as file:
            return cls(str(path), hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class RewardSpec:
    """The facts about a reward that lists, reports and suites use."""

    name: str
    summary: str  # the first line of its docstring
    range: tuple[float, float]  # lowest and highest value; may be infinite
    needs: tuple[str, ...]  # required fields of a RewardInput
    version: str  # changes when its numbers do; part of every cache key
    scope: Scope
    direction: Direction  # "lower": an error or a distance, which a suite subtracts
    differentiable: bool  # has `score_tensor`
    source: str  # paper or formula
    licence: str  # of the scorer's weights where it has any, else of its code
    weights: tuple[WeightFile, ...] = field(default=())

    @property
    def worst(self) -> float:
        """The score of an invalid answer; if it is infinite, an invalid answer cannot be scored."""
        return self.range[0] if self.direction == "higher" else self.range[1]

    @property
    def sign(self) -> int:
        """1 where higher is better, else -1: the factor of the value in a total."""
        return 1 if self.direction == "higher" else -1
