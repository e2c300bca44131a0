"""Claims about arms: `with > without`, `a = b within 0.02`, `increasing in strength`; and the verdict on each.

A comparison is a list of contrasts, each a weighted sum of arms whose mean is estimated with an interval. `a > b` has
one contrast, a chain `both > one > base` has two, a sweep has its slope and one for each step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmrl.errors import ConfigError
from mmrl.statistics.intervals import Floats, Interval

BASE = "base"
"""The arm that stands for the runs before their training."""
Outcome = Literal["holds", "opposite", "not told apart"]
Values = Mapping[str, Floats]  # by arm: [P, S]
IntervalOf = Callable[[Floats], Interval]  # of differences [P, S]

_ARM = r"[^\s<>=]+(?:=[^\s<>]+)?"
_EQUAL = re.compile(rf"(?P<first>{_ARM}) = (?P<second>{_ARM}) within (?P<margin>(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")
_MONOTONE = re.compile(r"(?P<direction>increasing|decreasing) in (?P<name>\S+)")


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of arms that is to be positive, or near 0 if there is a margin."""

    label: str
    weights: Mapping[str, float]
    margin: float | None = None
    required: bool = True
    """False: it must only not be significantly negative, as the steps of a monotone sweep."""

    def differences(self, values: Values) -> Floats:
        """Return the weighted sum of the arms' values, [P, S]."""
        return np.asarray(sum(weight * values[arm] for arm, weight in self.weights.items()))

    def verdict(self, interval: Interval) -> Outcome:
        """Return whether the interval lies on the side that is claimed, on the other, or on both."""
        low, high = interval.low, interval.high
        if self.margin is not None:
            if -self.margin < low and high < self.margin:
                return "holds"
            return "opposite" if low > self.margin or high < -self.margin else "not told apart"
        if low > 0:
            return "holds"
        return "opposite" if high < 0 else "not told apart"


@dataclass(frozen=True)
class Comparison:
    """A parsed claim."""

    test: str
    contrasts: tuple[Contrast, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that it compares, without repetition."""
        return tuple(dict.fromkeys(arm for contrast in self.contrasts for arm in contrast.weights))


@dataclass(frozen=True)
class Judgement:
    """The outcome of a comparison: the interval of each contrast, and the verdict on all of them."""

    verdict: Outcome
    intervals: tuple[Interval, ...]


def parse_claim(test: str, arms: Sequence[str], swept: Mapping[str, tuple[str, ...]], source: str) -> Comparison:
    """Return the comparison that a text states.

    Raises:
        ConfigError: the text has none of the forms, or names an arm that is not there.
    """
    text = " ".join(test.split())
    if match := _MONOTONE.fullmatch(text):
        name, sign = match["name"], 1 if match["direction"] == "increasing" else -1
        if name not in swept:
            raise ConfigError(f"{source}: {test!r}: there is no sweep called {name}")
        comparison = Comparison(test, (_slope(text, swept[name], sign), *_steps(swept[name], sign)))
    elif match := _EQUAL.fullmatch(text):
        weights = {match["first"]: 1.0, match["second"]: -1.0}
        comparison = Comparison(test, (Contrast(text, weights, margin=float(match["margin"])),))
    elif re.fullmatch(rf"{_ARM}(?: > {_ARM})+", text):
        comparison = Comparison(test, _chain(text.split(" > ")))
    elif re.fullmatch(rf"{_ARM}(?: < {_ARM})+", text):
        comparison = Comparison(test, _chain(text.split(" < ")[::-1]))
    else:
        raise ConfigError(
            f"{source}: {test!r} is no test: write `with > without`, `a > b > c`, `a < b`, `a = b within 0.02`, or "
            "`increasing in NAME` of a sweep"
        )
    if unknown := [arm for arm in comparison.arms if arm not in (*arms, BASE)]:
        raise ConfigError(f"{source}: {test!r}: there is no arm {unknown[0]}; there are {', '.join((*arms, BASE))}")
    return comparison


def judge(comparison: Comparison, values: Values, interval_of: IntervalOf) -> Judgement:
    """Return the verdict on a comparison: it holds if all of its contrasts do, and is opposite if one is.

    A contrast that is not required counts only if it is opposite.
    """
    intervals = tuple(interval_of(contrast.differences(values)) for contrast in comparison.contrasts)
    pairs = list(zip(comparison.contrasts, intervals, strict=True))
    found = [contrast.verdict(interval) for contrast, interval in pairs]
    if "opposite" in found:
        return Judgement("opposite", intervals)
    required = [each for contrast, each in zip(comparison.contrasts, found, strict=True) if contrast.required]
    return Judgement("holds" if all(each == "holds" for each in required) else "not told apart", intervals)


def overall(verdicts: Sequence[Outcome]) -> Outcome:
    """Return a study's verdict: opposite if one claim is, holds if all do."""
    if "opposite" in verdicts:
        return "opposite"
    return "holds" if all(each == "holds" for each in verdicts) else "not told apart"


def _chain(arms: Sequence[str]) -> tuple[Contrast, ...]:
    pairs = itertools.pairwise(arms)
    return tuple(Contrast(f"{higher} > {lower}", {higher: 1.0, lower: -1.0}) for higher, lower in pairs)


def _slope(label: str, arms: Sequence[str], sign: int) -> Contrast:
    """Return the least-squares slope over the arms' places 0, 1, 2, ...: the change from one arm to the next."""
    places = np.arange(len(arms)) - (len(arms) - 1) / 2
    weights = sign * places / (places @ places)
    return Contrast(label, dict(zip(arms, weights.tolist(), strict=True)))


def _steps(arms: Sequence[str], sign: int) -> list[Contrast]:
    steps = []
    for before, after in itertools.pairwise(arms):
        lower, higher = (before, after) if sign > 0 else (after, before)
        steps.append(Contrast(f"{higher} >= {lower}", {higher: 1.0, lower: -1.0}, required=False))
    return steps
