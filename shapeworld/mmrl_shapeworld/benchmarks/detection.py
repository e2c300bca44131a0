"""Things and their boxes in the files of RefCOCO and of COCO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mmrl_shapeworld.benchmarks.writing import write_json, write_json_lines, write_picture
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import detection, grounding, named


def write_refcoco(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Write descriptions of one of two or three things, with its box."""
    rows = []
    for number in range(count):
        question = grounding(rng)
        name = write_picture(folder, f"images/{number:05d}.png", question.frames[0])
        sentence = question.prompt.removeprefix("Locate the ").removesuffix(".")
        rows.append({"image": name, "sent": sentence, "bbox": question.answer, "height": PIXELS, "width": PIXELS})
    write_json_lines(folder / "refcoco_shapes.jsonl", rows)


def write_coco(folder: Path, count: int, rng: np.random.Generator) -> None:
    """All of one to three things in each picture."""
    numbers = {named(kind): number for number, kind in enumerate(KINDS, start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        question = detection(rng)
        name = write_picture(folder / "shapes", f"{number:012d}.png", question.frames[0])
        images.append({"id": number, "file_name": name, "height": PIXELS, "width": PIXELS})
        for thing in question.answer:
            x1, y1, x2, y2 = thing["box"]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": numbers[thing["label"]],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    write_json(folder / "annotations" / "instances_shapes.json", whole)
