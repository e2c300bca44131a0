"""COCO object detection, and other data sets in its format (arXiv:1405.0312)."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import JsonRecord, files_in, inside, json_value, records_of
from mmrl.data.sample import Sample
from mmrl.errors import DataError

log = logging.getLogger(__name__)


def read(folder: Path) -> list[Sample]:
    """Read one `annotations/instances_SPLIT.json` with its images in `SPLIT/`, `images/SPLIT/` or `images/`.

    Its `images` have `id`, `file_name`, `width`, `height`; its `categories` `id` and `name`; its `annotations`
    `image_id`, `category_id`, `bbox` (x, y, width, height in pixels) and optionally `iscrowd`. Each image is a sample,
    also without objects; its prompt is the names of all categories. Crowds are in `metadata["crowd"]`, with boxes in
    [0, 1]. Boxes without area are left out, and their number is logged.
    """
    found = files_in(folder, "annotations/instances_*.json", "instances_*.json")
    if len(found) > 1:
        raise DataError(f"{folder}: holds {', '.join(path.name for path in found)}; expected one split")
    path = found[0]
    whole = json_value(path)
    if not isinstance(whole, dict):
        raise DataError(f"{path}: is {whole!r:.60}; expected an object with images, annotations and categories")
    tables = JsonRecord(str(path), whole)
    names = {each.count("id"): each.text("name") for each in tables.records("categories")}
    boxes = _boxes(tables, names, path)
    pictures = _pictures(folder, path.stem.removeprefix("instances_"))
    samples = []
    for image in tables.records("images"):
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


_Thing = tuple[list[float], str, bool]  # box x1, y1, x2, y2; category; True for a crowd


def _boxes(tables: JsonRecord, names: dict[int, str], path: Path) -> dict[int, list[_Thing]]:
    """Return {image id: its objects}."""
    known: set[Any] = {image.count("id") for image in records_of(tables.fields.get("images"), f"{path}, images")}
    boxes: dict[int, list[_Thing]] = defaultdict(list)
    flat = 0
    for each in tables.records("annotations"):
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
