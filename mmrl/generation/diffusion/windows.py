"""Which denoising steps explore and are trained; the others follow the ODE.

A short window that moves trains every step in the end at a fraction of the cost. Where it stands follows from the
configuration, the iteration and a seed alone, so a resumed run finds it where it was.
"""

from __future__ import annotations

import math
import random

from mmrl.config.sampling import WindowConfig
from mmrl.errors import ConfigError
from mmrl.seeds import stream_seed


def draw_window(window: WindowConfig, steps: int, seed: int, iteration: int = 0) -> range:
    """The stochastic steps of one rollout: drawn uniformly from where the window fits, or as it moves by then.

    The last of `steps` never explores: it adds no noise. One step alone gives an empty window.

    Raises:
        ConfigError: the window does not fit into the steps.

    >>> draw_window(WindowConfig(), steps=10, seed=0)
    range(0, 9)
    >>> draw_window(WindowConfig(size=4, move="slide", every=25), steps=10, seed=0, iteration=50)
    range(2, 6)
    """
    high = steps - 1 if window.high is None else min(window.high, steps - 1)
    if high == 0:
        return range(0)
    size = high - window.low if window.size is None else window.size
    if size < 1 or window.low + size > high:
        raise ConfigError(f"sampling.window: {size} steps from step {window.low} do not fit below step {high} "
                          f"(the pipeline takes {steps}, of which the last adds no noise)")  # fmt: skip
    latest = high - size
    if window.move == "grow":
        return range(max(window.low, latest - window.stride * (iteration // window.every)), high)
    if window.move == "slide":
        start = _slid(window, latest, iteration)
    else:
        start = random.Random(stream_seed(seed, "window")).randint(window.low, latest)
    return range(start, start + size)


def _slid(window: WindowConfig, latest: int, iteration: int) -> int:
    """The first step of a sliding window (MixGRPO, arXiv:2507.21802); past the last place it begins again."""
    places = [*range(window.low, latest, window.stride), latest]
    stays = [math.ceil(window.every * math.exp(-window.decay * max(0, place - window.decay_from))) for place in places]
    left = iteration % sum(stays)
    for place, stay in zip(places, stays, strict=True):
        if left < stay:
            return place
        left -= stay
    raise AssertionError("the remainder is less than the sum")
