"""Episodes along a recorded trace of the toy shop, whose next observation is the recorded one after any action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mmrl.environments import Observation, Step
from mmrl.environments.tagged_steps import read_tag

if TYPE_CHECKING:
    from mmrl_shapeworld.shop.shop_environment import ShopEpisode

Mismatch = Literal["end", "patch"]


class RecordedShopEpisode:
    """The actions of one row along a trace, each of which counts if it is the recorded one; tags are not read.

    `shop` carries out the recorded actions. After another action the episode is over or, up to `max_patches` times, the
    observation names the recorded action before the shop's answer to it, as in `open 4 none`.
    """

    def __init__(self, shop: ShopEpisode, recorded: Sequence[str], max_patches: int) -> None:
        self._shop, self._recorded, self._max_patches = shop, recorded, max_patches
        self._matched: list[bool] = []
        self._patched = 0
        self._ended = ""

    def step(self, action: str | None) -> Step:
        """Compare an action with the recorded one, and carry that out."""
        if self._ended:
            raise ValueError("the episode is over")
        recorded = read_tag(self._recorded[len(self._matched)])[1]
        match = action is not None and read_tag(action)[1] == recorded
        self._matched.append(match)
        after = self._shop.step(recorded)
        text = "" if after.observation is None else after.observation.text
        if action is None:
            self._ended = "cut_off"
        elif not match and self._patched == self._max_patches:
            self._ended = "mismatch"
        elif len(self._matched) == len(self._recorded):
            self._ended = "steps"
        elif not match:
            self._patched += 1
            text = f"{recorded} {text}"
        observation = None if self._ended else Observation(text)
        return Step(observation, {"match": float(match)}, {**dict.fromkeys(after.info, 0.0), "effect": float(match)})

    def outcome(self) -> Mapping[str, Any]:
        """Return success (all actions were the recorded ones), the share of those that were, and the patches."""
        return {
            "success": sum(self._matched) == len(self._recorded),
            "progress": sum(self._matched) / len(self._recorded),
            "found": False,
            "repeated": 0.0,
            "wasted": 0.0,
            "actions": len(self._matched),
            "reflected": 0,
            "patched": self._patched,
            "ended": self._ended,
        }
