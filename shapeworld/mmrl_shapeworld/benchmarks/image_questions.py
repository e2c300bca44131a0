"""Questions about one picture in the files of CountBenchQA, of OCR data, of ChartQA and of MathVista."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mmrl_shapeworld.benchmarks.writing import write_json, write_json_lines, write_picture
from mmrl_shapeworld.vqa.questions import Question, chart, counting, ocr, puzzle


def write_countbench(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Write questions about the number of things of a colour or shape."""
    rows = []
    for number in range(count):
        question = counting(rng)
        name = write_picture(folder, f"images/{number:05d}.png", question.frames[0])
        rows.append({"image": name, "question": question.prompt, "number": question.answer})
    write_json_lines(folder / "countbench_shapes.jsonl", rows)


def write_ocr_lines(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Three large letters."""
    rows = []
    for number in range(count):
        question = ocr(rng)
        name = write_picture(folder, f"lines/{number:05d}.png", question.frames[0])
        rows.append({"file_name": name, "text": question.answer})
    write_json_lines(folder / "metadata.jsonl", rows)


def write_chartqa(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Four bars: which is tallest or shortest (as `human`), and how tall one is (as `augmented`), by turns."""
    rows: dict[str, list[dict[str, Any]]] = {"human": [], "augmented": []}
    for number in range(count):
        part = list(rows)[number % 2]
        question = (_bar if part == "human" else _height)(rng)
        name = write_picture(folder / "png", f"{number:05d}.png", question.frames[0])
        rows[part].append({"imgname": name, "query": question.prompt, "label": str(question.answer)})
    for part, rows_of_part in rows.items():
        if rows_of_part:
            write_json(folder / f"test_{part}.json", rows_of_part)


def write_mathvista(folder: Path, count: int, rng: np.random.Generator) -> None:
    """The odd one out (of options), counts and heights of bars (whole numbers), and bars by colour (text), by turns."""
    makers: list[tuple[Callable[[np.random.Generator], Question], str, str]] = [
        (puzzle, "multi_choice", "text"),
        (counting, "free_form", "integer"),
        (_height, "free_form", "integer"),
        (_bar, "free_form", "text"),
    ]
    problems = {}
    for number in range(1, count + 1):
        make, question_type, answer_type = makers[(number - 1) % len(makers)]
        question = make(rng)
        choices = list(question.metadata["choices"]) if question_type == "multi_choice" else None
        problems[str(number)] = {
            "pid": str(number),
            "question": question.prompt,
            "image": write_picture(folder, f"images/{number}.png", question.frames[0]),
            "choices": choices,
            "unit": None,
            "precision": None,
            "answer": choices["ABCD".index(question.right)] if choices else str(question.answer),
            "question_type": question_type,
            "answer_type": answer_type,
            "metadata": {"split": "testmini", "source": "ShapeWorld", "skills": [_SKILLS[make]]},
            "query": question.prompt,
        }
    write_json(folder / "testmini.json", problems)


def _height(rng: np.random.Generator) -> Question:
    return _until(rng, chart, lambda question: not isinstance(question.answer, str))


def _bar(rng: np.random.Generator) -> Question:
    return _until(rng, chart, lambda question: isinstance(question.answer, str))


_SKILLS: dict[Callable[[np.random.Generator], Question], str] = {
    puzzle: "logical reasoning",
    counting: "numeric commonsense",
    _height: "statistical reasoning",
    _bar: "statistical reasoning",
}


def _until(
    rng: np.random.Generator, make: Callable[[np.random.Generator], Question], wanted: Callable[[Question], bool]
) -> Question:
    """The first question of the kind that is wanted."""
    while not wanted(question := make(rng)):
        pass
    return question
