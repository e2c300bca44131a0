"""Questions about images: ChartQA, CountBench, MathVista, and text recognition."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import (
    JsonRecord,
    entries_in,
    entries_of,
    files_in,
    inside,
)
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source
from mmrl.errors import DataError

log = logging.getLogger(__name__)

READ_TEXT = "Read the text."
_COUNTBENCH_COLUMNS = {"question": "prompt", "image": "images", "number": "answer"}
_ANSWER_TYPES = ("text", "integer", "float", "list")


def read_chartqa(folder: Path) -> list[Sample]:
    """Read `test_human.json` and `test_augmented.json` beside `png/`, as in the folder `ChartQA Dataset/test`.

        [{"imgname": "41699051005347.png", "query": "How many food item is shown in the bar graph?", "label": "14"}]

    The part, `human` or `augmented`, becomes the tag (arXiv:2203.10244).
    """
    samples = []
    for path, number, entry in entries_in(folder, "test_*.json"):
        part, label = path.stem.removeprefix("test_"), entry.fields.get("label")
        samples.append(
            Sample(
                id=f"{path.stem}-{number:05d}",
                prompt=entry.text("query"),
                images=(inside(folder / "png", entry.text("imgname"), entry.place),),
                answer=label if isinstance(label, int | float) else entry.text("label"),
                source=part,
                metadata={"tags": [part]},
            )
        )
    return samples


def read_countbench(folder: Path) -> list[Sample]:
    """Read the Parquet files of CountBenchQA (needs `pip install mmrl-suite[data]`), or `*.jsonl`, or `*.json`.

        {"image": "images/7.png", "question": "How many dogs are there in the image?", "number": 3}

    Other columns, such as the caption `text`, are ignored. Paths of images are relative to the folder. CountBench is
    arXiv:2302.12066, the questions are those of vikhyatk.
    """
    samples: list[Sample] = []
    for path in files_in(folder, "*.parquet", "data/*.parquet", "*.jsonl", "*.json"):
        rows = _countbench_table(path) if path.suffix == ".parquet" else _countbench_lines(folder, path)
        samples += [replace(row, source="countbench", metadata={"tags": [str(row.answer)]}) for row in rows]
    return samples


def read_mathvista(folder: Path) -> list[Sample]:
    """Read `testmini.json` or `annot_testmini.json`: an object whose keys are the numbers of the problems.

        {"1": {"pid": "1", "question": "...", "query": "Hint: ... Question: ...", "image": "images/1.jpg",
               "choices": null, "unit": null, "precision": 1.0, "answer": "1.2", "question_type": "free_form",
               "answer_type": "float", "metadata": {"source": "GeoQA+", "skills": ["geometry reasoning"], ...}}}

    The prompt is `query`, MathVista's own wording with its hint (arXiv:2310.02255), or `question` if there is none.
    Options are in `metadata["choices"]`; the answer is the text of the right one. The tags are the skills, and the
    source is the data set that the problem comes from.
    """
    path = files_in(folder, "testmini.json", "annot_testmini.json", "data/testmini.json", "data/annot_testmini.json")[0]
    images = folder if (folder / "images").is_dir() else path.parent
    return [_mathvista_sample(images, path, number, entry) for number, entry in enumerate(entries_of(path))]


def read_ocr_lines(folder: Path) -> list[Sample]:
    """Read `metadata.jsonl` of an image folder of Hugging Face, or `OCRBench.json` (arXiv:2305.07895).

        {"file_name": "lines/0001.png", "text": "the quick brown fox"}

        [{"dataset_name": "IIIT5K", "type": "Regular Text Recognition", "question": "what is written in the image?",
          "answers": ["CENTRE"], "image_path": "IIIT5K/1.png", "id": 0}]

    Only the recognition types of OCRBench are read, with the first answer as reference; the others are questions about
    texts and formulas, for which an edit distance is not a measure: they are left out, and their number is logged.
    Paths of images are relative to the folder, or to its `OCRBench_Images`.
    """
    path = files_in(folder, "metadata.jsonl", "OCRBench*.json", "OCRBench*/OCRBench.json")[0]
    if path.suffix == ".jsonl":
        return [
            _ocr_sample(f"ocr-{n:05d}", inside(folder, entry.text("file_name"), entry.place), entry.text("text"), "ocr")
            for n, entry in enumerate(entries_of(path))
        ]
    images = folder / "OCRBench_Images" if (folder / "OCRBench_Images").is_dir() else path.parent
    samples, others = [], 0
    for number, entry in enumerate(entries_of(path)):
        if "Recognition" not in (kind := entry.text("type")) or "Expression" in kind:
            others += 1
            continue
        image = inside(images, entry.text("image_path"), entry.place)
        samples.append(_ocr_sample(f"ocrbench-{number:05d}", image, _first_answer(entry), kind))
    if others:
        log.warning("%s: %d entries are not text recognition and are left out", path, others)
    return samples


def _countbench_table(path: Path) -> list[Sample]:
    rows = load_source(str(path), _COUNTBENCH_COLUMNS)
    for number, row in enumerate(rows):
        if not isinstance(row.answer, int) or not row.images:
            raise DataError(f"{path}, row {number}: expected columns image, question and number (an integer)")
    return rows


def _countbench_lines(folder: Path, path: Path) -> list[Sample]:
    return [
        Sample(
            id=f"{path.stem}-{number:05d}",
            answer=entry.count("number"),
            prompt=entry.text("question"),
            images=(inside(folder, entry.text("image"), entry.place),),
        )
        for number, entry in enumerate(entries_of(path))
    ]


def _mathvista_sample(images: Path, path: Path, number: int, entry: JsonRecord) -> Sample:
    question_type, answer_type = entry.text("question_type"), entry.text("answer_type")
    if question_type not in ("multi_choice", "free_form"):
        raise entry.wrong("question_type", "multi_choice or free_form")
    if answer_type not in _ANSWER_TYPES:
        raise entry.wrong("answer_type", f"one of {', '.join(_ANSWER_TYPES)}")
    known: dict[str, Any] = {"question_type": question_type, "answer_type": answer_type}
    answer = entry.text("answer")
    if question_type == "multi_choice":
        known["choices"] = entry.texts("choices")
        if answer not in known["choices"]:
            raise entry.wrong("answer", f"one of the choices {known['choices']}")
    elif answer_type == "float":
        known["precision"] = entry.count("precision")
    about = JsonRecord(f"{entry.place}, metadata", entry.fields.get("metadata") or {})
    skills = about.texts("skills") if "skills" in about.fields else []
    source = about.text("source") if "source" in about.fields else "mathvista"
    return Sample(
        id=f"{path.stem}-{entry.fields.get('pid', number)}",
        prompt=entry.text("query" if entry.fields.get("query") else "question"),
        images=(inside(images, entry.text("image"), entry.place),),
        answer=answer,
        source=source,
        metadata={"tags": skills, **known},
    )


def _first_answer(entry: JsonRecord) -> str:
    answers = entry.fields.get("answers")
    if isinstance(answers, str):
        return entry.text("answers")
    if not (found := entry.texts("answers")):
        raise entry.wrong("answers", "a text, or a list with one")
    return found[0]


def _ocr_sample(id: str, image: str, text: str, tag: str) -> Sample:
    return Sample(id=id, prompt=READ_TEXT, images=(image,), answer=text, source="ocr", metadata={"tags": [tag]})
