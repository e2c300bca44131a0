"""Pictures of captions that several generators of different quality drew: a fixed data set to learn from.

`generated-train` has the first `CAPTIONS` captions of training with two pictures each as demonstrations, by two
generators that are drawn by chance; `metadata.generators` names them. A process draws the pictures when it first
reads the split, in half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from PIL import Image

from mmrl.data.sample import Sample
from mmrl_shapeworld.scenes import picture_uri

GENERATORS: Mapping[str, tuple[str, Sequence[str]]] = {
    "guided": ("quickstart", ["sampling.guidance_scale=3.0"]),
    "guided-finely": ("quickstart", ["sampling.guidance_scale=2.0", "sampling.steps=30"]),
    "coarse": ("quickstart", ["sampling.steps=4"]),
    "tokens": ("shapes-ar", []),
    "tokens-hot": ("shapes-ar", ["sampling.temperature=1.3"]),
    "scales": ("shapes-scales", []),
    "scales-cold": ("shapes-scales", ["sampling.temperature=0.5"]),
    "unified": ("shapes-scales", ["policy.model=shapeworld:unified"]),
    "unet": ("shapes-ddpo", ["sampling={steps: 10, guidance_scale: 1.0, transition: {name: ode}}"]),
}
"""Recipes of the shipped generators, and how they sample: the one of the quickstart in three ways, and six others."""
NAMES = ("generated-train",)
CAPTIONS = 768
_BATCH = 96
_SEED = 211


def samples(split: str) -> list[Sample]:
    """Return the split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of generated pictures: choose one of {', '.join(NAMES)}")
    return list(_drawn())


@cache
def _drawn() -> tuple[Sample, ...]:
    from mmrl_shapeworld.splits import samples as captions

    chosen, rng = captions("train")[:CAPTIONS], np.random.default_rng(_SEED)
    names = [[list(GENERATORS)[place] for place in rng.choice(len(GENERATORS), 2, replace=False)] for _ in chosen]
    pictures: dict[tuple[int, str], Image.Image] = {}
    for name in GENERATORS:
        rows = [row for row, own in enumerate(names) if name in own]
        drawn = _pictures(name, [chosen[row] for row in rows])
        pictures |= {(row, name): picture for row, picture in zip(rows, drawn, strict=True)}
    return tuple(
        replace(
            sample,
            id=f"generated-{sample.id}",
            demonstration=[{"image": picture_uri(pictures[row, name])} for name in own],
            metadata={**sample.metadata, "generators": own},
        )
        for row, (sample, own) in enumerate(zip(chosen, names, strict=True))
    )


def _pictures(name: str, chosen: Sequence[Sample]) -> list[Image.Image]:
    """Return a picture of each sample by a generator."""
    import torch

    from mmrl.build.policies import build_policy
    from mmrl.config import load_config
    from mmrl.rollout_request import RolloutRequest

    recipe, changes = GENERATORS[name]
    config = load_config(recipe, changes)
    policy = build_policy(config.policy, config.sampling, config.media)
    found: list[Image.Image] = []
    for start in range(0, len(chosen), _BATCH):
        requests = [RolloutRequest(sample, 1, row) for row, sample in enumerate(chosen[start : start + _BATCH])]
        with torch.no_grad():
            found += policy.rollout(requests, 1000 * list(GENERATORS).index(name) + start).media
    return found
