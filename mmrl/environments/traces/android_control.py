"""AndroidControl (arXiv:2406.03679): episodes of people on Android, in TFRecord files with gzip.

Features of a record: `episode_id`, `goal`, `screenshots` (PNG, one more than actions), `actions` (JSON), and others
that are not read, such as the trees of accessibility. Clicks have no boxes, so the environment compares distances.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmrl.benchmarks.records import JsonRecord
from mmrl.environments.traces.tfrecord import features_of, records_in
from mmrl.environments.traces.trace_folder import Trace
from mmrl.errors import DataError

_NAMES = {
    "click": "click",
    "long_press": "long_press",
    "scroll": "scroll",
    "open_app": "open_app",
    "type": "type",
    "input_text": "type",
    "navigate_home": "press_home",
    "navigate_back": "press_back",
    "wait": "wait",
}
"""The names of actions, by `action_type`."""
_POINTED = ("click", "long_press", "type")
_TEXTS = {"scroll": "direction", "open_app": "app_name", "type": "text", "input_text": "text"}


def read_android_control(source: Path) -> Iterator[Trace]:
    """Yield the episodes of a file, or of all files `android_control*` of a folder, each with a last step `finished`.

    Raises:
        DataError: a file or record is malformed. The message names both.
    """
    paths = [source] if source.is_file() else sorted(each for each in source.glob("android_control*") if each.is_file())
    if not paths:
        raise DataError(f"{source}: there is no file android_control* in it")
    for path in paths:
        for number, content in enumerate(records_in(path)):
            yield _trace(features_of(content, f"{path}, record {number}"), f"{path}, record {number}")


def _trace(features: dict[str, list[bytes] | list[int]], place: str) -> Trace:
    id, goal = _one(features, "episode_id", int, place), _one(features, "goal", bytes, place)
    screens = tuple(each for each in features.get("screenshots", ()) if isinstance(each, bytes))
    actions = [each for each in features.get("actions", ()) if isinstance(each, bytes)]
    if len(screens) != len(actions) + 1:
        raise DataError(f"{place}: has {len(screens)} screenshots and {len(actions)} actions; expected one more")
    steps = [_step(action, f"{place}, action {number}") for number, action in enumerate(actions)]
    return Trace(
        place=place,
        id=f"android_control-{id}",
        goal=_text(goal, f"{place}, goal"),
        source="android_control",
        screens=screens,
        steps=(*steps, {"action": "finished"}),
    )


def _step(content: bytes, place: str) -> dict[str, Any]:
    """Return the step of an action: a JSON object with `action_type` and its parameters."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{place}: is not JSON: {err}") from None
    if not isinstance(fields, dict):
        raise DataError(f"{place}: is {fields!r:.60}; expected an object")
    action = JsonRecord(place, fields)
    kind = action.text("action_type")
    if kind not in _NAMES:
        raise action.wrong("action_type", f"one of {', '.join(_NAMES)}")
    step: dict[str, Any] = {"action": _NAMES[kind]}
    if kind in _POINTED:
        step["point"] = [action.number("x"), action.number("y")]
    if kind in _TEXTS:
        step["text"] = action.any_text(_TEXTS[kind])
    return step


def _one(features: dict[str, list[bytes] | list[int]], key: str, kind: type, place: str) -> Any:
    values = features.get(key, [])
    if len(values) != 1 or not isinstance(values[0], kind):
        raise DataError(f"{place}: {key} has {len(values)} values; expected one of kind {kind.__name__}")
    return values[0]


def _text(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as err:
        raise DataError(f"{place}: is not UTF-8: {err.reason}") from None
