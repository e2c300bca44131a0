"""A gauge of reward hacking while a run trains: a trained reward rises, and one that is only measured falls.

Both are in the metrics of every iteration. They are compared by windows of some iterations: each window with the
earlier one in which the measured reward was best, so that a rise before the fall does not hide it. The bounds of all
falls of a run hold together: at window k the level is `LEVEL` / (k (k - 1)), divided by the number of earlier windows
and of measured rewards. Where no measured reward changes, a run is thus flagged with a probability of `LEVEL` at most.
The rise of a trained one, which alone flags nothing, has the level `LEVEL` at every window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.config.training import HackingConfig
from mmrl.statistics.intervals import welch_interval

LEVEL = 0.05


@dataclass(frozen=True)
class Change:
    """The change of a reward between two windows."""

    name: str
    before: float
    after: float
    low: float  # of the interval of after - before
    high: float

    def moved(self, sign: int) -> bool:
        """Return True if the whole interval is on the side of `sign`."""
        return self.low > 0 if sign > 0 else self.high < 0

    def __str__(self) -> str:
        return f"{self.name} from {self.before:.3f} to {self.after:.3f}"


class HackingGauge:
    """A monitor that flags the windows in which a trained reward rose and a measured one fell; see the module.

    With `then: stop` the run ends after a flagged window; with `refresh` rewards that learn do so in the window after
    it alone, and the comparison begins anew. It is updated once an iteration, and its state is saved with the run.
    """

    def __init__(
        self,
        config: HackingConfig,
        trained: Mapping[str, int],  # names, and 1, or -1 where less is better or the weight is below 0
        measured: Mapping[str, int],
    ) -> None:
        self.config = config
        self._signs = {**trained, **measured}
        self._trained, self._measured = tuple(trained), tuple(measured)
        self._windows: list[dict[str, list[float]]] = []  # finished ones, since the last refresh
        self._open: dict[str, list[float]] = self._empty()
        self._first = 1  # the first iteration of the first window
        self._refreshes = False
        self.flagged = False
        """True if the last finished window was flagged."""
        self.message = ""
        """The sentence about what the last update found; empty if it found nothing new."""

    @property
    def stops(self) -> bool:
        """True if the run is to end."""
        return self.flagged and self.config.then == "stop"

    @property
    def rewards_learn(self) -> bool:
        """False in iterations whose answers rewards must not learn from."""
        return self.config.then != "refresh" or self._refreshes

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Read the means of an iteration; at the end of a window add `hacking/flagged` and `hacking/fall/NAME`.

        An iteration in which one of the rewards has no mean is left out.
        """
        self.message = ""
        means = {name: metrics.get(f"reward/{name}", math.nan) for name in self._signs}
        if not all(map(math.isfinite, means.values())):
            return
        for name, mean in means.items():
            self._open[name].append(float(mean))
        if len(next(iter(self._open.values()))) < self.config.window:
            return
        self._windows.append(self._open)
        self._open = self._empty()
        was_flagged, was_refreshed = self.flagged, self._refreshes
        found = self._found()
        self.flagged, self._refreshes = bool(found), bool(found) and self.config.then == "refresh"
        metrics["hacking/flagged"] = float(self.flagged)
        metrics |= {f"hacking/fall/{name}": self._fall(name) for name in self._measured}
        if found and not (was_flagged and self.config.then == "warn"):
            self.message = self._describe(step, found)
        elif was_refreshed:
            self.message = f"iteration {step}: the rewards that learn stay as they are now"
        if self._refreshes or was_refreshed:  # the scores of before and after a refresh cannot be compared
            self._windows, self._first = [], step + 1

    def describe_stop(self) -> str:
        """Return the reason for the end of the run, as a clause."""
        return "a measured reward fell while the trained one rose (training.hacking)"

    def state_dict(self) -> dict[str, Any]:
        """Return the means of the windows, and what followed from them."""
        return {
            "window": self.config.window,
            "windows": self._windows,
            "open": self._open,
            "first": self._first,
            "refreshes": self._refreshes,
            "flagged": self.flagged,
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the state that `state_dict` returned; without one, or with other windows, begin after `step`."""
        names = list(self._signs)
        if not state or state["window"] != self.config.window or list(state["open"]) != names:
            self._first = step + 1
            return
        self._windows, self._open = [dict(each) for each in state["windows"]], dict(state["open"])
        self._first, self._refreshes, self.flagged = state["first"], state["refreshes"], state["flagged"]

    def _empty(self) -> dict[str, list[float]]:
        return {name: [] for name in self._signs}

    def _found(self) -> list[tuple[int, Change, list[Change]]]:
        """Return for each measured reward that fell: the window in which it was best, its fall, and what rose since."""
        count = len(self._windows)
        if count < 2:
            return []
        level = 2 * LEVEL / (count * (count - 1)) / (count - 1) / len(self._measured)  # 2: a fall is one-sided
        found = []
        for name in self._measured:
            best = self._best(name)
            fall = self._change(name, best, level)
            changes = [self._change(each, best, LEVEL) for each in self._trained]
            risen = [each for each in changes if each.moved(self._signs[each.name])]
            if risen and fall.moved(-self._signs[name]):
                found.append((best, fall, risen))
        return found

    def _best(self, name: str) -> int:
        """Return the earlier window in which a measured reward was best; the last of equal ones."""
        means = [self._signs[name] * _mean(each[name]) for each in self._windows[:-1]]
        return max(range(len(means)), key=lambda place: (means[place], place))

    def _fall(self, name: str) -> float:
        """Return how much better a measured reward was in its best earlier window than now; 0 in the first window."""
        if len(self._windows) < 2:
            return 0.0
        return self._signs[name] * (_mean(self._windows[self._best(name)][name]) - _mean(self._windows[-1][name]))

    def _change(self, name: str, window: int, level: float) -> Change:
        before, after = self._windows[window][name], self._windows[-1][name]
        low, high = welch_interval(before, after, level)
        return Change(name, _mean(before), _mean(after), low, high)

    def _describe(self, step: int, found: Sequence[tuple[int, Change, list[Change]]]) -> str:
        length = self.config.window
        parts = []
        for best, fall, risen in found:
            first = self._first + best * length
            rose = " and ".join(map(str, risen))
            parts.append(f"{fall} since iterations {first} to {first + length - 1}, while {rose} rose")
        text = f"iteration {step}: measured rewards fell: {'; '.join(parts)}. The reward is probably being hacked"
        if self.config.then == "refresh":
            return f"{text}; rewards that learn do so in iterations {step + 1} to {step + length}"
        return text


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
