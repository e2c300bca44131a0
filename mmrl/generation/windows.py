"""Which denoising steps explore and are trained; the others follow the ODE.

A short window that moves from rollout to rollout trains every step in the end at a fraction of the cost (MixGRPO,
arXiv:2507.21802; Flow-GRPO-Fast).
"""

from __future__ import annotations

import random

from mmrl.config.sampling import WindowConfig
from mmrl.config.section import ConfigError
from mmrl.generation.seeds import stream_seed


def draw_window(window: WindowConfig, steps: int, seed: int) -> range:
    """The stochastic steps of one rollout, drawn uniformly from where the window fits.

    The last of `steps` never explores: it adds no noise. One step alone gives an empty window.

    >>> draw_window(WindowConfig(), steps=10, seed=0)
    range(0, 9)
    """
    high = steps - 1 if window.high is None else min(window.high, steps - 1)
    if high == 0:
        return range(0)
    size = high - window.low if window.size is None else window.size
    if size < 1 or window.low + size > high:
        raise ConfigError(f"sampling.window: {size} steps from step {window.low} do not fit below step {high} "
                          f"(the pipeline takes {steps}, of which the last adds no noise)")  # fmt: skip
    start = random.Random(stream_seed(seed, "window")).randint(window.low, high - size)
    return range(start, start + size)
