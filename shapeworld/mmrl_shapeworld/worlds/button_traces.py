"""Recorded traces on the screens of coloured buttons, for the environment `recorded`.

Each step has the click, the boxes of all buttons that were right there, and the next screen. Beside `-train` there are
the parts `-development`, `-validation` and `-ood`:

screens-traces-train        the tasks of `screens-train`, done by the expert
screens-careless-train      by the careless annotator, wrong clicks and dead ends included
screens-traces-steps-train  a sample for each step, which follows those before it; also `screens-careless-steps-train`
screens-offline-train       each trace of the expert, of the source `traces`, and then its steps, of the source `steps`
screens-one-label-train     steps on screens with two right buttons, one of which was clicked and is labelled
screens-all-labels-train    the same steps, with the labels of both
screens-one-of-many-train   the expert's steps, on screens with four right buttons, one of which is labelled
screens-curriculum-train    the expert's traces as stage 0, the tasks of `screens-train` as stage 1

The last one is there for training alone. Of two right buttons the expert clicks the upper one, or the left of a row;
in `screens-one-label` and `screens-one-of-many` the one that was clicked is drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from mmrl.data.sample import Sample
from mmrl.data.staged_prompts import STAGE
from mmrl.environments.recorded_steps import START, each_step
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.vqa.canvas import png_uri
from mmrl_shapeworld.worlds import button_splits
from mmrl_shapeworld.worlds.button_environment import ANNOTATORS, ButtonEpisode
from mmrl_shapeworld.worlds.button_screens import ScreenTask, draw_buttons
from mmrl_shapeworld.worlds.button_splits import Annotator, careless, expert

_WORDS = {"expert": "traces", "careless": "careless"}
"""The word in the names of splits, by annotator."""
_LABELS = ("one-label", "all-labels")
_MANY = "one-of-many"
MANY = 4
"""The number of right buttons on the screens of `screens-one-of-many`: all of them."""
CURRICULUM = "screens-curriculum-train"
NAMES = (
    *(
        f"screens-{word}{every}-{part}"
        for word in _WORDS.values()
        for every in ("", "-steps")
        for part in button_splits.SIZES
    ),
    *(f"screens-{word}-{part}" for word in ("offline", *_LABELS, _MANY) for part in button_splits.SIZES),
    CURRICULUM,
)
_SEED = 82


def record(sample: Sample, annotator: str, seed: int) -> Sample:
    """Return the trace of an annotator in the task of a sample, which is in `answer`.

    Raises:
        ConfigError: there is no such annotator.
        DataError: the sample has no task of screens.
    """
    if annotator not in ANNOTATORS:
        raise ConfigError(f"there is no annotator {annotator!r} of screens: choose one of {', '.join(ANNOTATORS)}")
    act = expert if annotator == "expert" else careless(np.random.default_rng((_SEED, seed)))
    try:
        task = ScreenTask.from_dict(sample.answer)
    except ValueError as err:
        raise DataError(f"sample {sample.id!r}: answer: {err}") from None
    steps = record_steps(task, act)
    return replace(
        sample,
        id=f"{sample.id}-{annotator}",
        demonstration={"turns": [step["written"] for step in steps]},
        metadata={**sample.metadata, "space": "pixel", "steps": steps},
    )


def record_steps(task: ScreenTask, annotator: Annotator) -> list[dict[str, Any]]:
    """Return the steps of an annotator's episode (`mmrl.environments.recorded_steps`)."""
    episode = ButtonEpisode(task)
    steps: list[dict[str, Any]] = []
    while True:
        written = annotator(episode)
        x, y = map(int, written.split(", "))
        boxes = [list(map(int, box)) for name, box in episode.screen.buttons if name == episode.wanted]
        steps.append({"action": "click", "point": [x, y], "boxes": boxes, "written": written})
        if episode.step(written).observation is None:
            return steps
        steps[-1]["screen"] = png_uri(episode.screen.picture)


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    if split == CURRICULUM:
        stages = (_samples("screens-traces-train"), tuple(button_splits.samples("screens-train")))
        return tuple(
            replace(sample, metadata={**sample.metadata, STAGE: number})
            for number, stage in enumerate(stages)
            for sample in stage
        )
    _, word, *every, part = split.split("-")
    if word == "offline":
        return tuple(
            sample
            for trace in _samples(f"screens-traces-{part}")
            for sample in (replace(trace, source="traces"), *(replace(s, source="steps") for s in each_step(trace)))
        )
    if "-".join((word, *every)) == _MANY:
        return tuple(_of_many_right_buttons(_samples(f"screens-traces-steps-{part}")))
    if "-".join((word, *every)) in _LABELS:
        return tuple(_of_two_right_buttons(_samples(f"screens-traces-steps-{part}"), all_labels=word == "all"))
    if every:
        return tuple(step for trace in _samples(f"screens-{word}-{part}") for step in each_step(trace))
    annotator = next(name for name, known in _WORDS.items() if known == word)
    found = button_splits.samples(f"screens-{part}")
    return tuple(record(sample, annotator, number) for number, sample in enumerate(found))


def _of_two_right_buttons(steps: Sequence[Sample], all_labels: bool) -> Iterator[Sample]:
    """Yield the steps on screens with two right buttons, with the labels of both, or of one that is drawn at random."""
    rng = np.random.default_rng((_SEED, len(steps)))
    for sample in steps:
        trace, place = sample.metadata["steps"], sample.metadata[START]
        if len(boxes := trace[place]["boxes"]) == 1:
            continue
        one = [*trace[:place], _labelled(trace[place], boxes, rng), *trace[place + 1 :]]
        yield sample if all_labels else replace(sample, metadata={**sample.metadata, "steps": one})


def _of_many_right_buttons(steps: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the steps on screens that are drawn again with `MANY` right buttons, with the label of one at random."""
    rng = np.random.default_rng((_SEED, len(steps)))
    for sample in steps:
        trace, place = list(sample.metadata["steps"]), sample.metadata[START]
        task = ScreenTask.from_dict(sample.answer)
        screen = draw_buttons(task, place, right=MANY)
        boxes = [list(map(int, box)) for name, box in screen.buttons if name == task.targets[place]]
        trace[place] = _labelled(trace[place], boxes, rng)
        picture, images = png_uri(screen.picture), sample.images
        if place:
            trace[place - 1] = {**trace[place - 1], "screen": picture}
        else:
            images = (picture,)
        yield replace(sample, images=images, metadata={**sample.metadata, "steps": trace})


def _labelled(step: dict[str, Any], boxes: Sequence[list[int]], rng: np.random.Generator) -> dict[str, Any]:
    """Return a step of which one of the right buttons was clicked, drawn at random, and is labelled."""
    box = x1, y1, x2, y2 = boxes[int(rng.integers(len(boxes)))]
    middle = [(x1 + x2) // 2, (y1 + y2) // 2]
    return {**step, "point": middle, "written": "{}, {}".format(*middle), "boxes": [box]}


def samples(split: str) -> list[Sample]:
    """Return a split of recorded traces as data.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of recorded screens: choose one of {', '.join(NAMES)}")
    return list(_samples(split))
