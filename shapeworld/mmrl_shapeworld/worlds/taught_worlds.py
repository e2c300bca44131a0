"""Worlds whose form of answer no shipped model knows, each to be taught by the demonstrations of a careless annotator.

`shapeworld:drive-train`, `-development`, `-validation`, `-validation-later` and `-validation-last`, and so of `blot`,
`movers`, `grasp`, `hidden` and `moments`. `drive-right-train` has the questions of `drive-train` with right answers.
Samples name no reward, so that a run chooses its own. Forms of questions come by turns, and are the sources of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.canvas import gif_uri, png_uri
from mmrl_shapeworld.vqa.questions import Question
from mmrl_shapeworld.worlds import blotted_texts, drives, graspable_parts, hidden_things, moments, movers
from mmrl_shapeworld.worlds.world_splits import checksum

Draw = Callable[[np.random.Generator], Question]
RESULTS = ("validation", "validation-later", "validation-last")
"""The splits for results, none of which has a question of an earlier one: for studies that were decided on that."""
SIZES = {"train": 1200, "development": 256, **dict.fromkeys(RESULTS, 512)}
"""Questions of each split. Settings are chosen on `development`."""
WORLDS: Mapping[str, Mapping[str, Draw]] = {
    "drive": {"drive": drives.drive},
    "blot": {"blot-none": blotted_texts.clean_text, "blot-some": blotted_texts.blotted_text},
    "movers": {"movers": movers.movers},
    "grasp": {"grasp": graspable_parts.grasp},
    "hidden": {"hidden": hidden_things.hidden},
    "moments": {"moment": moments.moment, "moment-whole": moments.whole, "moment-never": moments.never},
}
"""The forms of questions of each world by source, in training."""
TESTED: Mapping[str, Mapping[str, Draw]] = {
    "drive": {"drive": drives.eventful_drive},
    "grasp": {"grasp": graspable_parts.grasp, "grasp-unseen": graspable_parts.unseen_grasp},
}
"""Those of development and validation, where they are others."""
RIGHT = {f"{world}-right-train": f"{world}-train" for world in WORLDS}
"""The splits whose demonstrations are right, and those that they have their questions of."""
NAMES = (*(f"{world}-{part}" for world in WORLDS for part in SIZES), *RIGHT)
_SHARES = {"train": range(0, 5), "development": range(5, 6), **dict.fromkeys(RESULTS, range(6, 8))}
"""The checksums, modulo 8, of the questions that a split may have: so none but those for results could share one."""
_SEED = 83


@cache
def taught_questions(split: str) -> tuple[tuple[str, Question], ...]:
    """Return the questions of a split with their sources, always the same, and none twice.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    if split in RIGHT:
        return taught_questions(RIGHT[split])
    world, _, part = split.partition("-")
    forms = WORLDS[world] if part == "train" else TESTED.get(world, WORLDS[world])
    rng = np.random.default_rng((_SEED, list(WORLDS).index(world), list(SIZES).index(part)))
    earlier = RESULTS[: RESULTS.index(part)] if part in RESULTS else ()
    used = {checksum(question) for each in earlier for _, question in taught_questions(f"{world}-{each}")}
    found: dict[int, tuple[str, Question]] = {}
    while len(found) < SIZES[part]:
        source = list(forms)[len(found) % len(forms)]
        question = forms[source](rng)
        if (known := checksum(question)) % 8 in _SHARES[part] and known not in used:
            found.setdefault(known, (source, question))
    return tuple(found.values())


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data. Training data have demonstrations: those of the careless annotator, or right answers.

    The source of a clip of `drive` is its event, as in `drive-brake`.

    Raises:
        KeyError: there is no such split.
    """
    demonstrated = split.endswith("-train")
    return [
        Sample(
            id=f"{split}-{number:04d}",
            prompt=question.prompt,
            images=(png_uri(question.frames[0]),) if len(question.frames) == 1 else (),
            videos=(gif_uri(question.frames),) if len(question.frames) > 1 else (),
            answer=question.answer,
            source=f"{source}-{event}" if (event := question.metadata.get("event")) else source,
            demonstration=(question.right if split in RIGHT else question.annotated) if demonstrated else None,
            metadata={**question.metadata, "right": question.right},
        )
        for number, (source, question) in enumerate(taught_questions(split))
    ]
