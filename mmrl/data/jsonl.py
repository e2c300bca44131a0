"""Data sets as JSON Lines: one `Sample` a line, keys as its fields.

    {"id": "a1", "prompt": "two red circles", "answer": 2, "source": "counting"}
    {"id": "a2", "prompt": "make the circle blue", "image": "pictures/7.png"}

DataError(ValueError)
    a data set that cannot be used; the message names the file and the line
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmrl.data.conditions import KEYS as CONDITIONS
from mmrl.data.sample import RewardChoice, Sample


class DataError(ValueError):
    """A data set that cannot be used. The message names the file and the line."""


_sample = TypeAdapter(Sample)


def read_samples(path: Path | str) -> list[Sample]:
    """The samples of a JSON Lines file, in order. A line without an `id` is called after its file and line number.

    Raises:
        DataError: no such file, no samples in it, a line that is no sample, an unknown key, or an id that came before.
    """
    path = Path(path)
    samples: list[Sample] = []
    lines_by_id: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                sample = _parse(line, f"{path}:{number}", f"{path.stem}-{number}")
                if (first := lines_by_id.setdefault(sample.id, number)) != number:
                    raise DataError(f"{path}:{number}: the id {sample.id!r} is already that of line {first}")
                samples.append(sample)
    except OSError as why:
        raise DataError(f"{path}: cannot be read: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise DataError(f"{path}: is not UTF-8 text: {why}") from None
    if not samples:
        raise DataError(f"{path}: holds no samples")
    return samples


def write_samples(samples: Sequence[Sample], path: Path | str) -> None:
    """Write what `read_samples` reads back; fields at their defaults are left out. Replaces the file at once."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        for sample in samples:
            try:
                file.write(json.dumps(_as_dict(sample), ensure_ascii=False) + "\n")
            except (TypeError, ValueError) as why:
                draft.unlink()
                raise DataError(f"{path}: sample {sample.id!r} cannot be written as JSON: {why}") from None
    draft.replace(path)


def _parse(line: str, place: str, default_id: str) -> Sample:
    try:
        row = json.loads(line.strip())
    except json.JSONDecodeError as why:
        raise DataError(f"{place}: is not JSON: {why.msg} at column {why.colno}") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: is a {type(row).__name__}; a sample is an object with keys, like a prompt")
    row = _gather_conditions(row, place)
    _refuse_unknown(row, Sample, place)
    choices = row.get("rewards")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            _refuse_unknown(choice, RewardChoice, f"{place}: rewards")
    if not any(row.get(key) for key in ("prompt", "messages", "conditions")):
        raise DataError(f"{place}: has no prompt, no messages and no conditions")
    try:  # strict JSON: a list becomes a tuple, but no number becomes a text
        return _sample.validate_json(json.dumps({"id": default_id} | row), strict=True)
    except ValidationError as why:
        error = why.errors()[0]
        where = ".".join(str(part) for part in error["loc"])
        raise DataError(f"{place}: {where}: {error['msg']}, not {error['input']!r:.80}") from None


def _gather_conditions(row: dict[str, Any], place: str) -> dict[str, Any]:
    """The conditions that have a key of their own, moved to the others."""
    own = {key: row[key] for key in CONDITIONS if key in row}
    if empty := ", ".join(key for key, value in own.items() if value is None):
        raise DataError(f"{place}: {empty} is null: leave it out, or say what it is")
    if not own:
        return row
    others = row.get("conditions", {})
    if not isinstance(others, dict):
        return row  # refused by its type later
    if twice := sorted(own.keys() & others.keys()):
        raise DataError(f"{place}: {', '.join(twice)} stands both in the line and in its 'conditions'")
    return {key: value for key, value in row.items() if key not in own} | {"conditions": own | others}


def _refuse_unknown(row: Mapping[str, Any], schema: type, place: str) -> None:
    known = [field.name for field in fields(schema)] + (list(CONDITIONS) if schema is Sample else [])
    for key in row:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "what a reward needs to know goes into 'metadata'"
            raise DataError(f"{place}: {key!r} is not a key of {schema.__name__}: {hint}")


def _as_dict(sample: Sample) -> dict[str, Any]:
    row = asdict(sample)
    for field in fields(Sample):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if row[field.name] == default:
            del row[field.name]
    return row
