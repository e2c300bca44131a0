"""Mind2Web (arXiv:2306.06070) with screenshots: tasks of people on web sites.

Read are the Parquet files of Multimodal-Mind2Web, one action a row, and JSON files with a list of tasks whose `actions`
name the file of their `screenshot`, relative to the JSON file. Places are the `bounding_box_rect` (x, y, width, height
in pixels of the page) of all positive candidates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import JsonRecord, entries_of, inside
from mmrl.data.media.uris import uri_bytes
from mmrl.data.sources import table_rows
from mmrl.environments.traces.trace_folder import Trace
from mmrl.errors import DataError

_NAMES = {"CLICK": "click", "TYPE": "type", "SELECT": "select"}


def read_mind2web(source: Path) -> Iterator[Trace | str]:
    """Yield the tasks of a file, or of all `*.parquet` or `*.json` files of a folder; a text for one that is left out.

    Left out are tasks of which an action is missing, and those with an action that has no place on the page.

    Raises:
        DataError: a file or record is malformed. The message names both.
    """
    found = [source] if source.is_file() else sorted([*source.glob("*.parquet"), *source.glob("*.json")])
    if not found:
        raise DataError(f"{source}: there is no file *.parquet or *.json in it")
    begun: dict[str, dict[int, JsonRecord]] = {}  # tasks of which not all rows are read
    for path in found:
        if path.suffix == ".json":
            for task in entries_of(path):
                yield _trace(task, task.records("actions"), path.parent)
            continue
        for number, row in enumerate(table_rows(str(path))):
            record = JsonRecord(f"{path}, row {number}", row)
            name = record.text("annotation_id")
            actions = begun.setdefault(name, {})
            actions[_whole(record, "target_action_index")] = record
            if len(actions) == len(record.texts("action_reprs")):
                yield _trace(record, [actions[index] for index in sorted(actions)], None)
                del begun[name]
    yield from ["an action is missing"] * len(begun)


def _trace(task: JsonRecord, actions: list[JsonRecord], folder: Path | None) -> Trace | str:
    """Return the trace of a task; screenshots are bytes in a table, and files below `folder` in JSON."""
    steps = []
    for action in actions:
        boxes = _boxes(action)
        if not boxes:
            return "an action has no place on the page"
        steps.append(_step(action, boxes))
    if not steps:
        return "there are no actions"
    return Trace(
        place=task.place,
        id=f"mind2web-{task.text('annotation_id')}",
        goal=task.text("confirmed_task"),
        source=f"mind2web-{task.text('domain')}" if "domain" in task.fields else "mind2web",
        screens=tuple(_picture(action, folder) for action in actions),
        steps=tuple(steps),
        tags=(f"website: {task.text('website')}",) if "website" in task.fields else (),
    )


def _step(action: JsonRecord, boxes: list[list[float]]) -> dict[str, Any]:
    operation = JsonRecord(f"{action.place}, operation", _object(action, action.fields.get("operation"), "operation"))
    kind = operation.text("op")
    if kind not in _NAMES:
        raise operation.wrong("op", f"one of {', '.join(_NAMES)}")
    step: dict[str, Any] = {"action": _NAMES[kind], "boxes": boxes}
    return step if kind == "CLICK" else {**step, "text": operation.any_text("value")}


def _boxes(action: JsonRecord) -> list[list[float]]:
    """Return the boxes of the positive candidates that have an area."""
    candidates = action.fields.get("pos_candidates")
    if not isinstance(candidates, list):
        raise action.wrong("pos_candidates", "a list")
    boxes = []
    for candidate in candidates:
        fields = _object(action, candidate, "pos_candidates")
        attributes = _object(action, fields.get("attributes", {}), "pos_candidates.attributes")
        rect = attributes.get("bounding_box_rect")
        if rect is None:
            continue
        try:
            x, y, width, height = (float(part) for part in str(rect).split(","))
        except ValueError:
            raise DataError(f"{action.place}: bounding_box_rect is {rect!r:.60}; expected x,y,width,height") from None
        if width > 0 and height > 0:
            boxes.append([x, y, x + width, y + height])
    return boxes


def _object(action: JsonRecord, value: Any, key: str) -> Mapping[str, Any]:
    """Return an object, which tables hold as JSON text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as err:
        raise DataError(f"{action.place}: {key} is not JSON: {err}") from None
    if not isinstance(found, Mapping):
        raise DataError(f"{action.place}: {key} is {found!r:.60}; expected an object")
    return found


def _picture(action: JsonRecord, folder: Path | None) -> bytes:
    value = action.text("screenshot")
    if folder is not None:
        return Path(inside(folder, value, action.place)).read_bytes()
    try:
        return uri_bytes(value)
    except ValueError as err:
        raise DataError(f"{action.place}: screenshot {err}") from None


def _whole(record: JsonRecord, key: str) -> int:
    """Return a whole number that may be written as text."""
    value = record.fields.get(key)
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return record.count(key)
