"""Grounding of texts in images and videos: Charades-STA (arXiv:1705.02101), COCO (arXiv:1405.0312) and RefCOCO."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import JsonRecord, entries_in, files_in, inside, json_value, records_of, text_lines
from mmrl.data.sample import Sample
from mmrl.errors import DataError

log = logging.getLogger(__name__)

_CHARADES_LINE = re.compile(r"(?P<video>[\w-]+) (?P<start>[0-9.]+) (?P<end>[0-9.]+) ?## ?(?P<sentence>.+)")
_VIDEO_FOLDERS = ("videos", "Charades_v1_480", "Charades_v1")
_VIDEO_SUFFIXES = (".mp4", ".gif", ".mkv", ".webm", ".avi")
_Thing = tuple[list[float], str, bool]  # box x1, y1, x2, y2; category; True for a crowd


def read_charades_sta(folder: Path) -> list[Sample]:
    """Read `charades_sta_test.txt` beside `videos/`, `Charades_v1_480/` or `Charades_v1/`.

        3MSZA 24.3 30.4##person turn a light on.

    A line is the name of a video, start and end in seconds, and the sentence. Lines whose end is not after their start
    are left out, and their number is logged.
    """
    path = files_in(folder, "charades_sta_test.txt", "*sta*test*.txt")[0]
    videos = next((folder / name for name in _VIDEO_FOLDERS if (folder / name).is_dir()), None)
    if videos is None:
        raise DataError(f"{folder}: there is no folder {' or '.join(_VIDEO_FOLDERS)} with the videos in it")
    samples, empty = [], 0
    for number, line in text_lines(path):
        found = _CHARADES_LINE.fullmatch(line)
        if found is None:
            raise DataError(f"{path}:{number}: is {line!r:.60}; expected VIDEO START END##SENTENCE")
        try:
            start, end = float(found["start"]), float(found["end"])
        except ValueError:
            raise DataError(f"{path}:{number}: expected seconds, got {found['start']} and {found['end']}") from None
        if start >= end:
            empty += 1
            continue
        samples.append(
            Sample(
                id=f"charades-{number:05d}",
                prompt=found["sentence"].strip(),
                videos=(_video(videos, found["video"], f"{path}:{number}"),),
                answer=[start, end],
                source="charades_sta",
                metadata={"tags": []},
            )
        )
    if empty:
        log.warning("%s: %d lines whose end is not after their start are left out", path, empty)
    return samples


def read_coco(folder: Path) -> list[Sample]:
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


def read_refcoco(folder: Path) -> list[Sample]:
    """Read all `*.jsonl` of the folder, in the form published by Qwen-VL (refcoco_val.jsonl, refcoco_testA.jsonl).

        {"image": "data/coco/train2014/COCO_train2014_000000581857.jpg", "sent": "the woman in front",
         "bbox": [103.5, 300.0, 238.2, 476.4], "height": 640, "width": 480}

    A line is one sentence. `bbox` is x1, y1, x2, y2 in pixels; the path of the image is relative to the folder.
    """
    samples = []
    for path, number, entry in entries_in(folder, "*.jsonl"):
        size = [entry.count("width"), entry.count("height")]
        x1, y1, x2, y2 = box = entry.numbers("bbox", 4)
        if not (x1 < x2 <= size[0] * 1.01 and y1 < y2 <= size[1] * 1.01 and min(x1, y1) >= -0.01 * max(size)):
            raise entry.wrong("bbox", f"[x1, y1, x2, y2] in pixels of a picture of {size[0]} x {size[1]}")
        samples.append(
            Sample(
                id=f"{path.stem}-{number + 1:05d}",
                prompt=entry.text("sent"),
                images=(inside(folder, entry.text("image"), entry.place),),
                answer=box,
                source=path.stem,
                metadata={"tags": [path.stem], "space": "pixel", "size": size},
            )
        )
    return samples


def _video(folder: Path, name: str, place: str) -> str:
    for suffix in _VIDEO_SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return inside(folder, f"{name}{suffix}", place)
    raise DataError(f"{place}: there is no video {folder / name} with an ending of {', '.join(_VIDEO_SUFFIXES)}")


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
