"""Captions of ShapeWorld as the prompts of GenEval, of text rendering, of DrawBench and of VBench."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mmrl_shapeworld.benchmarks.writing import write_json, write_json_lines
from mmrl_shapeworld.captions import RELATIONS, SEEN_KINDS, Caption, Clause, sample_caption
from mmrl_shapeworld.motion import sample_motion
from mmrl_shapeworld.vqa.glyphs import LETTERS

_Prompt = tuple[Caption, dict[str, Any]]


def write_geneval(folder: Path, count: int, rng: np.random.Generator) -> None:
    """GenEval's six kinds of prompts by turns. As in GenEval, no kind checks more than it is about: colours count in
    `colors` and `color_attr` alone, though every caption names them."""
    rows = []
    for number in range(count):
        tag, ask = list(_GENEVAL.items())[number % len(_GENEVAL)]
        caption, clauses = ask(rng)
        rows.append({"tag": tag, "prompt": str(caption), **clauses})
    write_json_lines(folder / "evaluation_metadata.jsonl", rows)


def write_ocr_prompts(folder: Path, count: int, rng: np.random.Generator) -> None:
    """A thing, and three letters that are to be written. No embedded generator was taught to write."""
    lines = []
    for _ in range(count):
        text = "".join(LETTERS[n] for n in rng.integers(len(LETTERS), size=3))
        lines.append(f'{_one(_kinds(rng, 1)[0])} "{text}"\n')
    (folder / "test.txt").write_text("".join(lines), encoding="utf-8")


def write_drawbench(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Captions, with their form as the category."""
    with (folder / "DrawBench.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Prompts", "Category"])
        for _ in range(count):
            caption = sample_caption(rng, SEEN_KINDS)
            table.writerow([str(caption), caption.form])


def write_vbench(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Things that move, of which subject and background are to stay; and things that stand, of which nothing is to
    flicker."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        if number % 2:
            rows.append({"prompt_en": str(Caption((_one(_kinds(rng, 1)[0]),))), "dimension": ["temporal_flickering"]})
        else:
            dimensions = ["subject_consistency", "background_consistency"]
            rows.append({"prompt_en": str(sample_motion(rng, SEEN_KINDS)), "dimension": dimensions})
    write_json(folder / "VBench_full_info.json", rows)


def _single_object(rng: np.random.Generator) -> _Prompt:
    kind = _kinds(rng, 1)[0]
    return Caption((_one(kind),)), {"include": [_clause(kind)]}


def _two_object(rng: np.random.Generator) -> _Prompt:
    first, second = _kinds(rng, 2)
    return Caption((_one(first), _one(second))), {"include": [_clause(first), _clause(second)]}


def _counting(rng: np.random.Generator) -> _Prompt:
    kind, count = _kinds(rng, 1)[0], int(rng.integers(2, 5))
    caption = Caption((Clause(count, *kind),))
    return caption, {"include": [_clause(kind, count)], "exclude": [_clause(kind, count + 1)]}


def _colors(rng: np.random.Generator) -> _Prompt:
    kind = _kinds(rng, 1)[0]
    return Caption((_one(kind),)), {"include": [_clause(kind) | {"color": kind[0]}]}


def _position(rng: np.random.Generator) -> _Prompt:
    first, second = _kinds(rng, 2)
    relation = str(rng.choice(RELATIONS))
    clauses = [_clause(second), _clause(first) | {"position": [relation, 0]}]
    return Caption((_one(first), _one(second)), relation), {"include": clauses}


def _color_attr(rng: np.random.Generator) -> _Prompt:
    first, second = _kinds(rng, 2)
    clauses = [_clause(kind) | {"color": kind[0]} for kind in (first, second)]
    return Caption((_one(first), _one(second))), {"include": clauses}


_GENEVAL: dict[str, Callable[[np.random.Generator], _Prompt]] = {
    "single_object": _single_object,
    "two_object": _two_object,
    "counting": _counting,
    "colors": _colors,
    "position": _position,
    "color_attr": _color_attr,
}


def _kinds(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """Kinds of different shapes and colours, of those that the generators have learnt: GenEval's classes are shapes."""
    while True:
        chosen = [SEEN_KINDS[n] for n in rng.permutation(len(SEEN_KINDS))[:count]]
        if len({shape for _, shape in chosen}) == len({colour for colour, _ in chosen}) == count:
            return chosen


def _one(kind: tuple[str, str]) -> Clause:
    return Clause(1, *kind)


def _clause(kind: tuple[str, str], count: int = 1) -> dict[str, Any]:
    return {"class": kind[1], "count": count}
