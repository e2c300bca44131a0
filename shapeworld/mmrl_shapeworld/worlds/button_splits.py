"""Data sets of the screens of coloured buttons, their expert, and the traces of a careless annotator.

`shapeworld:screens-train`, `-development`, `-validation`, and `-ood`, whose skins training never shows. Sources are
`screens-2` to `screens-5` by the number of clicks, so that every metric is also reported by length; the splits
`screens-short-train` and so on have those of two and three clicks alone. `screens-validation-more` has the 512 tasks
that would have come next, for studies that have decided on `screens-validation` before. As screens follow from the
actions, the actions alone are a demonstration: `{"turns": ["12, 34", "40, 20"]}`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.canvas import PIXELS, png_uri
from mmrl_shapeworld.worlds.button_environment import ButtonEpisode
from mmrl_shapeworld.worlds.button_screens import ScreenTask, draw_buttons, sample_task
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.screens import SEEN_SKINS, UNSEEN_SKINS

SIZES = {"train": 1200, "development": 256, "validation": 512, "ood": 512}
"""Tasks of each split. Settings are chosen on `development`; `validation` and `ood` are for results."""
MORE = "screens-validation-more"
NAMES = (*(f"screens-{part}" for part in SIZES), MORE)
SHORT = {name.replace("screens", "screens-short"): name for name in NAMES}
"""The splits of tasks of at most `SHORTER` clicks, and those that they are part of."""
SHORTER = 3
RIGHT = 0.8
"""The probability that the annotator aims at a right button."""
AIM, SPREAD = 4.0, 3.5
"""Mean and standard deviation of the annotator's distance from the middle of a button, in pixels, right and down."""
_SEED = 81

Annotator = Callable[[ButtonEpisode], str]


def checksum(task: ScreenTask) -> int:
    """Return the checksum of the prompt and the first screen of a task, which decides on its split."""
    return zlib.crc32(task.prompt.encode() + draw_buttons(task, 0).picture.tobytes())


@cache
def tasks(split: str) -> tuple[ScreenTask, ...]:
    """Return the tasks of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of screens: choose one of {', '.join(NAMES)}")
    if split == MORE:
        return _drawn("validation", 2 * SIZES["validation"])[SIZES["validation"] :]
    part = split.rpartition("-")[2]
    return _drawn(part, SIZES[part])


def _drawn(part: str, count: int) -> tuple[ScreenTask, ...]:
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    skins = UNSEEN_SKINS if part == "ood" else SEEN_SKINS
    return draw_disjoint(part, count, lambda _: sample_task(skins, rng), checksum)


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, len(SIZES)))
    return tuple(
        Sample(
            id=f"{split}-{number:04d}",
            prompt=task.prompt,
            images=(png_uri(draw_buttons(task, 0).picture),),
            answer=task.as_dict(),
            source=f"screens-{len(task.targets)}",
            demonstration={"turns": list(trace(task, careless(rng)))} if split == "screens-train" else None,
            metadata={"tags": [f"skin: {task.skin}", "dead ends" if task.dead_ends else "no dead ends"]},
        )
        for number, task in enumerate(tasks(split))
    )


def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have the turns of the careless annotator as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    if split in SHORT:
        return [sample for sample in _samples(SHORT[split]) if len((sample.answer or {})["targets"]) <= SHORTER]
    return list(_samples(split))


def expert(episode: ButtonEpisode) -> str:
    """Return a click on the middle of a right button."""
    return click_on(episode, episode.wanted)


def careless(rng: np.random.Generator) -> Annotator:
    """Return an annotator who often aims too low and too far right, and one in five times at another button."""

    def annotate(episode: ButtonEpisode) -> str:
        names = [name for name, _ in episode.screen.buttons]
        others = [name for name in names if name != episode.wanted]
        aimed = episode.wanted if rng.random() < RIGHT or not others else others[int(rng.integers(len(others)))]
        return click_on(episode, aimed, *rng.normal(AIM, SPREAD, 2))

    return annotate


def trace(task: ScreenTask, annotator: Annotator) -> tuple[str, ...]:
    """Return the actions of an annotator in a whole episode."""
    episode = ButtonEpisode(task)
    actions: list[str] = []
    while True:
        actions.append(annotator(episode))
        if episode.step(actions[-1]).observation is None:
            return tuple(actions)


def click_on(episode: ButtonEpisode, name: str, right: float = 0.0, down: float = 0.0) -> str:
    """Return a click at a distance from the middle of a button, in pixels; it stays on the screen."""
    x1, y1, x2, y2 = next(box for each, box in episode.screen.buttons if each == name)
    x, y = (round(min(max(middle, 0), PIXELS)) for middle in ((x1 + x2) / 2 + right, (y1 + y2) / 2 + down))
    return f"{x}, {y}"
