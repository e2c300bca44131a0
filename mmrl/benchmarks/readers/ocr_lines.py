"""Text recognition: images of text lines, and OCRBench (arXiv:2305.07895)."""

from __future__ import annotations

import logging
from pathlib import Path

from mmrl.benchmarks.records import JsonRecord, files_in, inside, json_lines, json_value, records_of
from mmrl.data.sample import Sample

log = logging.getLogger(__name__)

QUESTION = "Read the text."


def read(folder: Path) -> list[Sample]:
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
            _sample(f"ocr-{n:05d}", inside(folder, entry.text("file_name"), entry.place), entry.text("text"), "ocr")
            for n, entry in enumerate(json_lines(path))
        ]
    images = folder / "OCRBench_Images" if (folder / "OCRBench_Images").is_dir() else path.parent
    samples, others = [], 0
    for number, entry in enumerate(records_of(json_value(path), str(path))):
        if "Recognition" not in (kind := entry.text("type")) or "Expression" in kind:
            others += 1
            continue
        image = inside(images, entry.text("image_path"), entry.place)
        samples.append(_sample(f"ocrbench-{number:05d}", image, _truth(entry), kind))
    if others:
        log.warning("%s: %d entries are not text recognition and are left out", path, others)
    return samples


def _truth(entry: JsonRecord) -> str:
    answers = entry.fields.get("answers")
    if isinstance(answers, str):
        return entry.text("answers")
    if not (found := entry.texts("answers")):
        raise entry.wrong("answers", "a text, or a list with one")
    return found[0]


def _sample(id: str, image: str, text: str, tag: str) -> Sample:
    return Sample(id=id, prompt=QUESTION, images=(image,), answer=text, source="ocr", metadata={"tags": [tag]})
