"""Data sets by name: captions for generators, and all that the other modules of this package draw.

Captions have a training split, splits for development and validation, and compositions that training never shows.
`samples` is an entry point of `mmrl.datasets`; a further module with splits is one line of `_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl.suggestions import did_you_mean
from mmrl_shapeworld import (
    composed_captions,
    generated_pictures,
    judged_motions,
    mask_tasks,
    pictured_captions,
    preferences,
    reasoned_edits,
    repainted_captions,
    swaps,
    task_splits,
    terse_captions,
    two_tasks,
    unified_splits,
)
from mmrl_shapeworld.captions import HELDOUT_KINDS, KINDS, SEEN_KINDS, Caption, sample_caption
from mmrl_shapeworld.reasoning import (
    answer_pairs,
    calculation_calls,
    calculation_chains,
    calculation_splits,
    call_traces,
    countdown,
    criticised_chains,
    directed_calculations,
    listed_calls,
    rephrased_calculations,
    trade_pairs,
    two_conventions,
    without_hard_steps,
    worksheets,
)
from mmrl_shapeworld.shop import shop_splits
from mmrl_shapeworld.vqa import consultations, faded_pictures, question_splits, scarce_clips
from mmrl_shapeworld.worlds import (
    badge_pages,
    button_splits,
    button_traces,
    judge_splits,
    noisy_captions,
    page_splits,
    redrawn_scenes,
    room_splits,
    small_things,
    stream_splits,
    taught_worlds,
    tinted_clips,
    world_splits,
    zoom_splits,
)

SPLITS = {"train": (11, 4096), "development": (12, 768), "validation": (14, 768), "heldout": (13, 384)}
"""Seed and size of each split. Settings are chosen on `development`; `validation` and `heldout` are for results."""

SECOND = "-second"
"""The end of the name of a split's second half, `badges-validation-second`: for a study that decides again, on samples
that an evaluation of the first half never saw."""

ONE_THING = "one-thing"
"""The split of all captions of training that name a single thing, each once."""

_FAMILIES: tuple[tuple[Sequence[str], Callable[[str], list[Sample]]], ...] = (
    ((*button_splits.NAMES, *button_splits.SHORT), button_splits.samples),
    (button_traces.NAMES, button_traces.samples),
    (zoom_splits.NAMES, zoom_splits.samples),
    (badge_pages.NAMES, badge_pages.samples),
    (small_things.NAMES, small_things.samples),
    (judge_splits.NAMES, judge_splits.samples),
    (noisy_captions.NAMES, noisy_captions.samples),
    (page_splits.NAMES, page_splits.samples),
    (redrawn_scenes.NAMES, redrawn_scenes.samples),
    (room_splits.NAMES, room_splits.samples),
    (stream_splits.NAMES, stream_splits.samples),
    (taught_worlds.NAMES, taught_worlds.samples),
    (tinted_clips.NAMES, tinted_clips.samples),
    (generated_pictures.NAMES, generated_pictures.samples),
    (preferences.NAMES, preferences.samples),
    (judged_motions.NAMES, judged_motions.samples),
    (tuple(task_splits.SPLITS), task_splits.samples),
    (two_tasks.NAMES, two_tasks.samples),
    (unified_splits.NAMES, unified_splits.samples),
    (composed_captions.NAMES, composed_captions.samples),
    (mask_tasks.NAMES, mask_tasks.samples),
    (swaps.NAMES, swaps.samples),
    (reasoned_edits.NAMES, reasoned_edits.samples),
    (terse_captions.NAMES, terse_captions.samples),
    (repainted_captions.NAMES, repainted_captions.samples),
    (pictured_captions.NAMES, pictured_captions.samples),
    (calculation_splits.NAMES, calculation_splits.samples),
    (calculation_chains.NAMES, calculation_chains.samples),
    (calculation_calls.NAMES, calculation_calls.samples),
    (answer_pairs.NAMES, answer_pairs.samples),
    (trade_pairs.NAMES, trade_pairs.samples),
    (directed_calculations.NAMES, directed_calculations.samples),
    (rephrased_calculations.NAMES, rephrased_calculations.samples),
    (without_hard_steps.NAMES, without_hard_steps.samples),
    (two_conventions.NAMES, two_conventions.samples),
    (listed_calls.NAMES, listed_calls.samples),
    (worksheets.NAMES, worksheets.samples),
    (call_traces.NAMES, call_traces.samples),
    (countdown.NAMES, countdown.samples),
    (criticised_chains.NAMES, criticised_chains.samples),
    (consultations.NAMES, consultations.samples),
    (scarce_clips.NAMES, scarce_clips.samples),
    (faded_pictures.NAMES, faded_pictures.samples),
    (shop_splits.NAMES, shop_splits.samples),
)
"""The names of splits, and the function that draws one."""


def captions(split: str) -> list[Caption]:
    """Return the captions of a split, always the same. `heldout` captions name at least one held-out kind.

    Raises:
        KeyError: there is no such split.
    """
    if split == ONE_THING:
        return [caption for caption in dict.fromkeys(captions("train")) if caption.total == 1]
    if split not in SPLITS:
        others = (question_splits.NAMES, world_splits.split_names(), *(names for names, _ in _FAMILIES))
        known = [*SPLITS, ONE_THING, *(name for names in others for name in names)]
        near = did_you_mean(split, known, count=3, likeness=0.55)
        hint = near or f"some are {', '.join(SPLITS)}, and docs/shapeworld.md names all"
        raise KeyError(f"ShapeWorld has no split {split!r}: {hint}")
    return list(_drawn(split))


@cache
def _drawn(split: str) -> tuple[Caption, ...]:
    """Return the captions; they are sampled once in a process, since the training split takes most of a second."""
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    kinds = KINDS if split == "heldout" else SEEN_KINDS
    chosen: list[Caption] = []
    while len(chosen) < size:
        caption = sample_caption(rng, kinds)
        if split != "heldout" or contains_heldout_kind(caption):
            chosen.append(caption)
    return tuple(chosen)


def contains_heldout_kind(caption: Caption) -> bool:
    """Return whether a caption names a composition that training never shows."""
    return any((clause.colour, clause.shape) in HELDOUT_KINDS for clause in caption.clauses)


def samples(split: str) -> list[Sample]:
    """Return a split as data: the prompt, the parsed caption as `answer`, and the form of caption as `source`.

    Raises:
        KeyError: there is no such split of any kind.
    """
    if split.endswith(SECOND):
        whole = samples(split.removesuffix(SECOND))
        return whole[len(whole) // 2 :]
    if question_splits.tasks_of(split):
        return question_splits.samples(split)
    if world_splits.parts_of(split):
        return world_splits.samples(split)
    for names, drawn in _FAMILIES:
        if split in names:
            return drawn(split)
    found = [caption_sample(caption, f"{split}-{number:05d}") for number, caption in enumerate(captions(split))]
    if split == "heldout":
        return [replace(sample, source=f"{sample.source}-heldout") for sample in found]
    return found


def caption_sample(caption: Caption, id: str) -> Sample:
    """Return a caption as a sample."""
    return Sample(
        id=id,
        prompt=str(caption),
        answer=caption.as_dict(),
        task="text-to-image",
        source=caption.form,
        metadata={"tags": _tags(caption)},
    )


def _tags(caption: Caption) -> list[str]:
    """Return what `mmrl evaluate` groups a caption under: colours, shapes, sizes, counts above 1, the relation."""
    tags: list[str] = []
    for clause in caption.clauses:
        tags += [f"colour: {clause.colour}", f"shape: {clause.shape}"]
        tags += [f"size: {clause.size}"] if clause.size else []
        tags += [f"count: {clause.count}"] if clause.count > 1 else []
    tags += [f"relation: {caption.relation}"] if caption.relation else []
    return list(dict.fromkeys(tags))
