"""COCO's object detection, and whatever else is annotated in its format (arXiv:1405.0312)."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

from mmrl.benchmarks.readers.files import Entry, entries_of, files_in, inside, json_value
from mmrl.data.sample import Sample
from mmrl.errors import DataError

log = logging.getLogger(__name__)


def read_coco(folder: Path) -> list[Sample]:
    """One `annotations/instances_SPLIT.json` with its pictures in `SPLIT/`, `images/SPLIT/` or `images/`.

    Its `images` have `id`, `file_name`, `width`, `height`; its `categories` `id` and `name`; its `annotations`
    `image_id`, `category_id`, `bbox` (x, y, width, height in pixels) and perhaps `iscrowd`. A picture is one sample,
    also where nothing is in it; its prompt is the names of all categories. Crowds stand in `metadata["crowd"]`, their
    boxes in shares of the picture. Boxes without area are left out, and how many is logged.
    """
    found = files_in(folder, "annotations/instances_*.json", "instances_*.json")
    if len(found) > 1:
        raise DataError(f"{folder}: holds {', '.join(path.name for path in found)}; one split at a time is due")
    path = found[0]
    whole = json_value(path)
    if not isinstance(whole, dict):
        raise DataError(f"{path}: is {whole!r:.60}; an object with images, annotations and categories is due")
    tables = Entry(str(path), whole)
    names = {each.count("id"): each.text("name") for each in tables.entries("categories")}
    boxes = _boxes(tables, names, path)
    pictures = _pictures(folder, path.stem.removeprefix("instances_"))
    samples = []
    for image in tables.entries("images"):
        width, height = image.number("width"), image.number("height")
        things = boxes.get(image.count("id"), [])
        samples.append(
            Sample(
                id=f"{path.stem}-{image.count('id')}",
                prompt=", ".join(names.values()),
                images=(inside(pictures, image.text("file_name"), image.place),),
                answer=[{"box": box, "label": label} for box, label, crowd in things if not crowd],
                source=path.stem,
                metadata={
                    "tags": sorted({label for _, label, _ in things}),
                    "space": "pixel",
                    "size": [width, height],
                    "crowd": [
                        {"box": [box[0] / width, box[1] / height, box[2] / width, box[3] / height], "label": label}
                        for box, label, crowd in things
                        if crowd
                    ],
                },
            )
        )
    return samples


_Thing = tuple[list[float], str, bool]  # x1, y1, x2, y2; category; whether it is a crowd


def _boxes(tables: Entry, names: dict[int, str], path: Path) -> dict[int, list[_Thing]]:
    """The things of each picture."""
    known: set[Any] = {image.count("id") for image in entries_of(tables.fields.get("images"), f"{path}, images")}
    boxes: dict[int, list[_Thing]] = defaultdict(list)
    flat = 0
    for each in tables.entries("annotations"):
        if each.count("image_id") not in known:
            raise each.wrong("image_id", "the id of one of the images")
        if each.count("category_id") not in names:
            raise each.wrong("category_id", "the id of one of the categories")
        x, y, width, height = each.numbers("bbox", 4)
        if width <= 0 or height <= 0:
            flat += 1
            continue
        crowd = bool(each.fields.get("iscrowd", 0))
        boxes[each.count("image_id")].append(([x, y, x + width, y + height], names[each.count("category_id")], crowd))
    if flat:
        log.warning("%s: %d boxes without area are left out", path, flat)
    return boxes


def _pictures(folder: Path, split: str) -> Path:
    for place in (folder / split, folder / "images" / split, folder / "images"):
        if place.is_dir():
            return place
    raise DataError(f"{folder}: there is no folder {split}, images/{split} or images with the pictures in it")
