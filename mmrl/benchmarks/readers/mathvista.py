"""MathVista (arXiv:2310.02255)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import JsonRecord, files_in, inside, json_value, records_of
from mmrl.data.sample import Sample

_ANSWER_TYPES = ("text", "integer", "float", "list")


def read(folder: Path) -> list[Sample]:
    """Read `testmini.json` or `annot_testmini.json`: an object whose keys are the numbers of the problems.

        {"1": {"pid": "1", "question": "...", "query": "Hint: ... Question: ...", "image": "images/1.jpg",
               "choices": null, "unit": null, "precision": 1.0, "answer": "1.2", "question_type": "free_form",
               "answer_type": "float", "metadata": {"source": "GeoQA+", "skills": ["geometry reasoning"], ...}}}

    The prompt is `query`, MathVista's own wording with its hint, or `question` if there is none. Options are in
    `metadata["choices"]`; the answer is the text of the right one. The tags are the skills, and the source is the data
    set that the problem comes from.
    """
    path = files_in(folder, "testmini.json", "annot_testmini.json", "data/testmini.json", "data/annot_testmini.json")[0]
    images = folder if (folder / "images").is_dir() else path.parent
    entries = records_of(json_value(path), str(path))
    return [_sample(images, path, number, entry) for number, entry in enumerate(entries)]


def _sample(images: Path, path: Path, number: int, entry: JsonRecord) -> Sample:
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
