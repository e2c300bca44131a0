"""Data sets of the toy shop: `shop-train`, `-development`, `-validation` and `-ood`.

Sources are `shop-4` to `shop-6` by the number of shelves. Training, development and validation have shops of four and
five shelves; `-ood` has larger ones, of six, and wants things that were never wanted in training. The splits
`shop-second-validation` and `shop-second-ood` are drawn by the same rules and have no task of `-validation` and `-ood`,
for studies that were decided there once; `shop-third-validation` and `shop-third-ood` have none of either. In
`shop-reflected-development`, `-validation` and `-ood` a reflector sends two actions of an episode back; the ids are
those of the splits without it. `shop-steps-train` has a sample for each action of a sure hand, who opens shelves in any
order: it follows the recorded ones before it, and is a success if it is the recorded one. `shop-made-1` has those
of the first 400 tasks of training that the model solved in two episodes, with the shorter one as the demonstration, and
`shop-made-2` those that it solved after it had imitated these (`mmrl data demonstrate`). `shop-profiled-train` are the
steps of the first 200 tasks of `shop-steps-train`, and `shop-pivots-train` those of them at which some of the model's
eight actions count (`match: equivalent`) at a temperature of 0.6, but fewer than 60 % (`mmrl data filter --below 0.6`).
`shop-tagged-train` has the tasks of training with episodes of a careless shopper whose tags say what each turn is for.
`shop-traces-train` has whole traces of an expert, who opens shelves in the order of the prompt, without tags, and
`shop-traces-steps-train` a sample for each action of these. In `shop-offline-development`, `-validation` and
`-second-validation` each trace (of the source `traces`) is followed by its steps (`steps`).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from mmrl.data.sample import Sample
from mmrl.environments.tagged_steps import read_tag
from mmrl_shapeworld.shop.careless_shopper import CARELESS, EXPERT, WANDERER, shop
from mmrl_shapeworld.shop.shop_environment import RECORDED, REFLECTIONS, START, ShopTask
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint

SEEN = (
    *("bread", "milk", "rice", "salt", "tea", "jam", "soap", "rope"),
    *("lamp", "book", "pen", "cup", "hat", "shoe", "belt", "coat"),
)
UNSEEN = ("honey", "glue", "brush", "scarf")
"""The things that training wants, and those that it never wants, though they lie on its shelves."""
SIZES = {"train": 1200, "development": 256, "validation": 512, "ood": 512}
"""Tasks of each split. Settings are chosen on `development`; `validation` and `ood` are for results."""
REFLECTED = tuple(f"shop-reflected-{part}" for part in SIZES if part != "train")
FURTHER = {
    f"shop-{which}-{part}": tuple(f"shop-{earlier}{part}" for earlier in ("", "second-")[: number - 1])
    for number, which in ((2, "second"), (3, "third"))
    for part in ("validation", "ood")
}
"""Further splits for results, and those whose tasks they do not have."""
STEPS, PROFILED, PIVOTS = "shop-steps-train", "shop-profiled-train", "shop-pivots-train"
PROFILED_TASKS = 200
PIVOT_IDS = Path(__file__).parent / "pivots.json"
MADE = {"shop-made-1": "made_round_1.json", "shop-made-2": "made_round_2.json"}
"""The splits of demonstrations that the model made itself, and their files: the turns of an episode by sample."""
TAGGED = "shop-tagged-train"
TRACES, TRACE_STEPS = "shop-traces-train", "shop-traces-steps-train"
OFFLINE = {
    "shop-offline-development": "shop-development",
    "shop-offline-validation": "shop-validation",
    "shop-offline-second-validation": "shop-second-validation",
}
"""The splits of traces that are each followed by its steps, and those of their tasks."""
NAMES = (
    *(f"shop-{part}" for part in SIZES),
    *REFLECTED,
    *FURTHER,
    *(STEPS, PROFILED, PIVOTS),
    *MADE,
    *(TAGGED, TRACES, TRACE_STEPS),
    *OFFLINE,
)
SENT_BACK = 2
"""The actions of an episode that the reflector sends back."""
_SEED = 141


def sample_task(rng: np.random.Generator, shelves: tuple[int, ...] = (4, 5), unseen: bool = False) -> ShopTask:
    """Sample a shop with one of these numbers of shelves; with `unseen`, it wants a thing that training never wants."""
    known = UNSEEN if unseen else SEEN
    wanted = known[int(rng.integers(len(known)))]
    others = [each for each in (*SEEN, *UNSEEN) if each != wanted]
    count = shelves[int(rng.integers(len(shelves)))]
    items = [wanted, *(others[place] for place in rng.choice(len(others), count - 1, replace=False))]
    order = rng.permutation(count)
    numbers = rng.choice(10, count, replace=False)
    return ShopTask(wanted, tuple(map(int, numbers)), tuple(items[place] for place in order))


def checksum(task: ShopTask) -> int:
    """Return the checksum of a task, which decides on its split."""
    return zlib.crc32(repr(task).encode())


@cache
def tasks(split: str) -> tuple[ShopTask, ...]:
    """Return the tasks of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of the shop: choose one of {', '.join(NAMES)}")
    part = split.rpartition("-")[2]
    earlier = FURTHER.get(split, ())
    known = frozenset(task for each in earlier for task in tasks(each))
    rng = np.random.default_rng((_SEED, list(SIZES).index(part), *([len(earlier) + 1] if earlier else [])))
    shelves, unseen = ((6,), True) if part == "ood" else ((4, 5), False)

    def draw(_: int) -> ShopTask | None:
        task = sample_task(rng, shelves, unseen)
        return None if task in known else task

    return draw_disjoint(part, SIZES[part], draw, checksum)


@cache
def _steps() -> tuple[Sample, ...]:
    rng, found = np.random.default_rng((_SEED, len(SIZES))), list[Sample]()
    for sample, task in zip(samples("shop-train"), tasks("shop-train"), strict=True):
        turns = shop(task, WANDERER, rng)[0]
        found += [
            replace(sample, id=f"{sample.id}-step-{start}", metadata={START: start, RECORDED: turns})
            for start in range(len(turns))
        ]
    return tuple(found)


@cache
def _tagged() -> tuple[Sample, ...]:
    rng, shopper = np.random.default_rng((_SEED, len(SIZES) + 1)), replace(CARELESS, mistags=0.0)
    return tuple(
        replace(sample, demonstration={"turns": shop(task, shopper, rng)[0]})
        for sample, task in zip(samples("shop-train"), tasks("shop-train"), strict=True)
    )


@cache
def _traces(split: str) -> tuple[tuple[Sample, tuple[Sample, ...]], ...]:
    """Return the traces of an expert in the tasks of a split, each with its steps."""
    rng, found = np.random.default_rng((_SEED, len(SIZES) + 2)), list[tuple[Sample, tuple[Sample, ...]]]()
    for sample, task in zip(samples(split), tasks(split), strict=True):
        turns = [read_tag(turn)[1] for turn in shop(task, EXPERT, rng)[0]]
        steps = (
            replace(sample, id=f"{sample.id}-trace-{start}", source="steps", metadata={START: start, RECORDED: turns})
            for start in range(len(turns))
        )
        trace = replace(sample, id=f"{sample.id}-trace", source="traces", metadata={RECORDED: turns})
        found.append((trace, tuple(steps)))
    return tuple(found)


def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    if split == STEPS:
        return list(_steps())
    if split in (PROFILED, PIVOTS):
        tried = {sample.id for sample in samples("shop-train")[:PROFILED_TASKS]}
        profiled = [step for step in _steps() if step.id.partition("-step-")[0] in tried]
        pivots = set(json.loads(PIVOT_IDS.read_text(encoding="utf-8"))) if split == PIVOTS else None
        return [step for step in profiled if pivots is None or step.id in pivots]
    if split == TRACES:
        return [trace for trace, _ in _traces("shop-train")]
    if split == TRACE_STEPS:
        return [step for _, steps in _traces("shop-train") for step in steps]
    if split in OFFLINE:
        return [sample for trace, steps in _traces(OFFLINE[split]) for sample in (trace, *steps)]
    if split == TAGGED:
        return list(_tagged())
    if split in MADE:
        made = json.loads((Path(__file__).parent / MADE[split]).read_text(encoding="utf-8"))
        found = [sample for sample in samples("shop-train") if sample.id in made]
        return [replace(sample, demonstration={"turns": made[sample.id]}) for sample in found]
    metadata = {REFLECTIONS: SENT_BACK} if split in REFLECTED else {}
    return [
        Sample(
            id=f"{split.replace('-reflected', '')}-{number:04d}",
            prompt=task.prompt,
            answer=task.as_dict(),
            source=f"shop-{len(task.shelves)}",
            metadata=dict(metadata),
        )
        for number, task in enumerate(tasks(split))
    ]
