"""Data sets of the worlds: training, development, validation and out-of-distribution splits of each, and mixtures.

`shapeworld:crowd-train` is the training split of one world, `shapeworld:crowd+caption-train` has those of two by turns,
and `shapeworld:worlds-train` those of all. `shapeworld:crowd-first` is the beginning of `crowd-train`.
`shapeworld:screen-few` has the hard ones of `screen-train`. `shapeworld:screen-native-train`, and so with the other
parts, has the questions of `screen-train` with demonstrations and references in each skin's own words.
`shapeworld:nested-table-authored-train`, and so with the other parts, has the tables of `nested-table-train` with the
codes of two kinds of authors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import Reward
from mmrl_shapeworld.vqa.canvas import gif_uri, png_uri
from mmrl_shapeworld.vqa.questions import Question
from mmrl_shapeworld.worlds import (
    crowds,
    documents,
    fact_graphs,
    hard_screens,
    picture_captions,
    picture_letters,
    referring,
    screens,
    spurious_clips,
)
from mmrl_shapeworld.worlds.caption_facts import FactCheck

Draw = Callable[[np.random.Generator], Question]
SIZES = {"train": 1200, "development": 256, "validation": 512, "ood": 512, "unseen": 512}
"""Questions of each split of one world. Settings are chosen on `development`; `validation` and `ood` are for results.
`unseen` has more questions like those of `ood`, for results of studies whose settings were chosen on `ood`."""
FIRST = 64
"""Questions of the training split that are the split `first`, too."""
PARTS = (*SIZES, "first")
MIXTURE = "worlds"
"""The name of the mixture of all worlds."""
_SEED = 71
_SHARES = {
    "train": range(0, 5),
    "development": range(5, 6),
    "validation": range(6, 8),
    "ood": range(0, 8),
    "unseen": range(5, 8),
}
"""The part of the checksums, modulo 8, of the questions that a split may have: so no two splits share a question.
`unseen` leaves out the questions of `ood`."""


@dataclass(frozen=True)
class QuestionWorld:
    """A kind of question, its out-of-distribution forms by name, and its reward."""

    draw: Draw
    unseen: Mapping[str, Draw]
    reward: RewardChoice
    task: str | None = None  # a built-in task of mmrl, where one fits


WORLDS: Mapping[str, QuestionWorld] = {
    "crowd": QuestionWorld(
        crowds.crowd,
        {"colour": crowds.unseen_colours, "layout": crowds.unseen_layout},
        RewardChoice("detection_f1", args={"threshold": 0.5}),
        "detection",
    ),
    "refer": QuestionWorld(
        referring.refer,
        {
            "colour": referring.unseen_colours,
            "shape": referring.unseen_shapes,
            "layout": referring.unseen_layout,
        },
        RewardChoice("box_iou"),
        "grounding",
    ),
    "screen": QuestionWorld(
        screens.screen,
        {skin: screens.unseen_screen(skin) for skin in screens.UNSEEN_SKINS},
        RewardChoice("gui_action"),
        "gui",
    ),
    "caption": QuestionWorld(
        picture_captions.caption,
        {
            "colour": picture_captions.unseen_colours,
            "shape": picture_captions.unseen_shapes,
            "number": picture_captions.unseen_number,
        },
        RewardChoice("rouge", args={"variant": "1"}),
    ),
    "chart-table": QuestionWorld(
        documents.chart_table,
        {"colour": documents.unseen_chart, "layout": documents.sideways_chart},
        RewardChoice("chart_table"),
    ),
    "nested-table": QuestionWorld(
        documents.nested_table, {"layout": documents.unseen_nesting}, RewardChoice("teds"), "table2latex"
    ),
    "page": QuestionWorld(documents.page, {"layout": documents.unseen_page}, RewardChoice("ocr_ned"), "ocr"),
    "clip": QuestionWorld(
        spurious_clips.cued_clip(),
        {"cue": spurious_clips.cued_clip(agrees=0.0)},
        RewardChoice("multiple_choice"),
        "video-qa",
    ),
    "letters": QuestionWorld(
        picture_letters.lettered,
        {"colour": picture_letters.unseen_colours, "number": picture_letters.unseen_number},
        RewardChoice("ocr_ned"),
        "ocr",
    ),
    "graph": QuestionWorld(
        fact_graphs.fact_graph,
        {"hops": fact_graphs.hops(4)},
        RewardChoice("chart_relaxed", args={"tolerance": 0.0}),
    ),
    "chart-data": QuestionWorld(documents.chart_data, {"layout": documents.sideways_data}, RewardChoice("chart_table")),
}
"""All worlds. The sources of the samples of an out-of-distribution split are named like `crowd-colour`."""


FEW = "screen-few"
NATIVE = "screen-native"
"""The name of the world of screens with each skin's own words for actions."""
AUTHORED = "nested-table-authored"
"""The name of the world of tables, most of which are written with a \\multicolumn for each cell."""
MULTICOLUMN = 2 / 3
"""The share of these."""
VARIANTS = (NATIVE, AUTHORED)
"""Worlds with the questions of `screen` and `nested-table` and other references."""


def parts_of(split: str) -> tuple[tuple[str, ...], str] | None:
    """Return the worlds and the part that a split's name names; None if it is not the name of such a split."""
    names, _, part = split.rpartition("-")
    worlds = tuple(WORLDS) if names == MIXTURE else tuple(names.split("+"))
    known = names in VARIANTS or (len(set(worlds)) == len(worlds) and all(name in WORLDS for name in worlds))
    return (worlds, part) if split == FEW or (known and part in PARTS) else None


def split_names() -> tuple[str, ...]:
    """Return the splits of all worlds, without mixtures."""
    return (*(f"{name}-{part}" for name in (*WORLDS, *VARIANTS) for part in PARTS), FEW)


@cache  # several runs in one process ask for them
def world_questions(name: str, part: str) -> tuple[tuple[str, Question], ...]:
    """Return the questions of a split with their sources, always the same; out-of-distribution forms by turns.

    Raises:
        KeyError: There is no such world or part.
    """
    if part == "first":
        return world_questions(name, "train")[:FIRST]
    world, size = WORLDS[name], SIZES[part]
    forms = {name: world.draw}
    if part in ("ood", "unseen"):
        forms = {f"{name}-{form}": draw for form, draw in world.unseen.items()}
    rng = np.random.default_rng((_SEED, list(WORLDS).index(name), list(SIZES).index(part)))
    taken = {_identity(question) for _, question in world_questions(name, "ood")} if part == "unseen" else set()
    found: dict[tuple[str, bytes], tuple[str, Question]] = {}
    while len(found) < size:
        source = list(forms)[len(found) % len(forms)]
        question = forms[source](rng)
        if checksum(question) % 8 in _SHARES[part] and _identity(question) not in taken:
            found.setdefault(_identity(question), (source, question))
    return tuple(found.values())


def _identity(question: Question) -> tuple[str, bytes]:
    return question.prompt, b"".join(frame.tobytes() for frame in question.frames)


def checksum(question: Question) -> int:
    """Return a number that is the same for the same prompt and pictures."""
    return zlib.crc32(question.prompt.encode() + b"".join(frame.tobytes() for frame in question.frames))


def samples(split: str) -> list[Sample]:
    """Return a split as data, its worlds by turns. Training data have the right answers as demonstrations.

    Raises:
        KeyError: There is no such split.
    """
    found = parts_of(split)
    if found is None:
        raise KeyError(f"there is no world's split {split!r}: choose one of {', '.join(split_names())}")
    worlds, part = found
    if split == FEW:
        training = samples("screen-train")
        return [training[number] for number in hard_screens.NUMBERS]
    if worlds == (NATIVE,):
        return [_in_own_words(each) for each in samples(f"screen-{part}")]
    if worlds == (AUTHORED,):
        return [_by_an_author(each) for each in samples(f"nested-table-{part}")]
    return list(chain.from_iterable(zip(*(_world_samples(world, part) for world in worlds), strict=True)))


def _in_own_words(sample: Sample) -> Sample:
    """Return a question about a screen whose demonstration and reference name the action as its skin does."""
    native = sample.metadata["native"]
    answer = {**sample.answer, "action": native.partition("(")[0]}
    return replace(sample, demonstration=native if sample.demonstration else None, answer=answer)


def _by_an_author(sample: Sample) -> Sample:
    """Return a table whose code is by one of two kinds of authors; it looks the same, and its picture does not tell.

    The demonstration of training has the right letters, and more often than not a letter twice for a cell that spans.
    """
    rng = np.random.default_rng(zlib.crc32(sample.id.encode()))
    code = documents.multicolumn_cells(sample.answer) if rng.random() < MULTICOLUMN else sample.answer
    flat = documents.without_spans(sample.answer) if rng.random() < documents.FLAT else sample.answer
    return replace(sample, answer=code, demonstration=flat if sample.demonstration else None)


@cache
def _world_samples(name: str, part: str) -> tuple[Sample, ...]:
    return tuple(
        world_sample(name, question, f"{name}-{part}-{number:04d}", source, demonstrated=part in ("train", "first"))
        for number, (source, question) in enumerate(world_questions(name, part))
    )


def world_sample(
    name: str, question: Question, id: str, source: str | None = None, demonstrated: bool = False
) -> Sample:
    """Return a question of a world as data, with the right answer as its demonstration if `demonstrated`."""
    world = WORLDS[name]
    return Sample(
        id=id,
        prompt=question.prompt,
        images=(png_uri(question.frames[0]),) if len(question.frames) == 1 else (),
        videos=(gif_uri(question.frames),) if len(question.frames) > 1 else (),
        answer=question.answer,
        task=world.task,
        source=source or name,
        demonstration=question.right if demonstrated else None,
        rewards=(world.reward,),
        metadata=question.metadata,
    )


def measure_of(name: str) -> Reward:
    """Return the reward that results on a world are stated in: its own, and for captions the check of their facts."""
    choice = WORLDS[name].reward
    return FactCheck() if name == "caption" else load(choice.name, **choice.args)
