"""A plain function as a reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mmrl.rewards.base import INPUT_FIELDS, Reward, RewardError, RewardInput, digest_of_source

MEDIA = ("image", "video", "text")


def reward_factory(function: Callable[..., float | Mapping[str, float]], name: str) -> type[Reward]:
    """What builds a reward from a function that scores one answer, with the function's own settings as arguments.

    Parameters are filled by name: `item` with the whole `RewardInput`, `image`, `video`, `text`, `prompt`,
    `references`, `metadata`, `group` and `id` with its fields; all others are settings. The function's attribute
    `range` states its lowest and highest value; without one, a malformed answer has no value to be given.

        def redness(image, prompt, threshold=0.5): ...

        redness.range = (0.0, 1.0)
        reward_factory(redness, "redness")(threshold=0.7)
    """
    parameters = inspect.signature(function).parameters.values()
    if loose := [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
        raise RewardError(f"{name}: parameters are filled by name, but {', '.join(loose)} cannot be")
    fields = [p.name for p in parameters if p.name in INPUT_FIELDS]
    settings = [p for p in parameters if p.name not in (*INPUT_FIELDS, "item")]
    takes_item = any(p.name == "item" for p in parameters)
    if not fields and not takes_item:
        raise RewardError(
            f"{name}({', '.join(p.name for p in parameters)}) takes nothing to score: "
            f"name a parameter `item` or one of {', '.join(INPUT_FIELDS)}"
        )
    bounds = getattr(function, "range", (-float("inf"), float("inf")))
    required = tuple(p.name for p in parameters if p.name in MEDIA and p.default is p.empty)

    class FunctionReward(Reward):
        needs, range = required, bounds

        def __init__(self, **args: Any) -> None:
            self.args = args

        @classmethod
        def source_digest(cls) -> str:
            return digest_of_source(function)

        def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
            filled = {field: getattr(item, field) for field in fields} | ({"item": item} if takes_item else {})
            return function(**filled, **self.args)

    FunctionReward.name = name
    FunctionReward.__doc__ = function.__doc__
    FunctionReward.__name__ = FunctionReward.__qualname__ = name
    # What `load` checks arguments against and `describe` shows: the settings alone.
    FunctionReward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in settings]
    )
    return FunctionReward
