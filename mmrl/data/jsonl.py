"""Data sets as JSON Lines: one `Sample` a line, keys as its fields.

    {"id": "a1", "prompt": "two red circles", "answer": 2, "source": "counting"}
    {"id": "a2", "prompt": "make the circle blue", "image": "pictures/7.png"}

`DataError` is raised for a data set that cannot be used; its message names the file and the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmrl.atomic_io import replacing
from mmrl.data.media.sample_media import CONDITION_KEYS, media_of
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError
from mmrl.suggestions import did_you_mean

_sample = TypeAdapter(Sample)


@dataclass(frozen=True)
class Line:
    """A line that is not blank: its sample, or its problems."""

    number: int
    sample: Sample | None
    problems: tuple[str, ...] = ()


def read_samples(path: Path | str) -> list[Sample]:
    """Return the samples of a JSON Lines file, in order. A line without an `id` gets one from the file and line number.

    Raises:
        DataError: the file does not exist or is empty, a line is not a sample, a key is unknown, or an id is repeated.
    """
    samples: list[Sample] = []
    for line in scan_samples(path):
        if line.problems or line.sample is None:
            raise DataError(f"{path}:{line.number}: {line.problems[0]}")
        samples.append(line.sample)
    if not samples:
        raise DataError(f"{path}: holds no samples")
    return samples


def scan_samples(path: Path | str) -> Iterator[Line]:
    """Yield the lines of a JSON Lines file, invalid ones with all their problems. In a `.txt` file a line is a prompt.

    Raises:
        DataError: the file cannot be read.
    """
    path = Path(path)
    lines_by_id: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file, start=1):
                try:
                    text = content.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as err:
                    yield Line(number, None, (f"is not UTF-8 text: {err.reason} at byte {err.start}",))
                    continue
                if not text:
                    continue
                default_id = f"{path.stem}-{number}"
                sample, problems = (
                    read_row({"prompt": text}, default_id) if path.suffix == ".txt" else _read_text(text, default_id)
                )
                if sample is not None and (first := lines_by_id.setdefault(sample.id, number)) != number:
                    problems = [f"the id {sample.id!r} is already that of line {first}"]
                yield Line(number, sample, tuple(problems))
    except OSError as err:
        raise DataError(f"{path}: cannot be read: {err.strerror}") from None


def read_row(row: Any, default_id: str) -> tuple[Sample | None, list[str]]:
    """Return the sample of a JSON object, or None and all its problems."""
    if not isinstance(row, dict):
        return None, [f"is a {type(row).__name__}; a sample is an object with keys, like a prompt"]
    row, problems = _gather_conditions(row)
    problems += _unknown_keys(row, Sample)
    choices = row.get("rewards")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            problems += [f"rewards: {problem}" for problem in _unknown_keys(choice, RewardChoice)]
    if not any(row.get(key) for key in ("prompt", "messages", "conditions")):
        problems.append("has no prompt, no messages and no conditions")
    problems += _odd_turns(row.get("messages"))
    problems += [
        f"{key!a} contains half of a character ({half}), which is no text: repair it, or leave it out"
        for key, value in row.items()
        if (half := _lone_surrogate([key, value]))
    ]
    if problems:
        return None, problems
    try:  # strict mode of JSON: a list becomes a tuple, but a number does not become a text
        sample = _sample.validate_json(json.dumps({"id": default_id} | row), strict=True)
    except ValidationError as err:
        return None, [
            f"{'.'.join(str(part) for part in error['loc']) or 'a sample'}: {error['msg']}, not {error['input']!r:.80}"
            for error in err.errors()
        ]
    problems = [
        f"{reference:.200} is an address: download it, and name the file"
        for _, reference in media_of(sample)
        if reference.lower().startswith(("http://", "https://"))
    ]
    return None if problems else sample, problems


def _lone_surrogate(value: Any) -> str:
    """Return the escape of the first half of a surrogate pair in a JSON value that is without its other half, or ""."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as err:
        return err.object[err.start].encode(errors="backslashreplace").decode()
    return ""


def write_samples(samples: Sequence[Sample], path: Path | str) -> None:
    """Write samples for `read_samples`, without fields at their defaults. Replaces the file atomically.

    Raises:
        DataError: a sample cannot be written as JSON.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        for sample in samples:
            try:
                file.write(line_text(sample))
            except (TypeError, ValueError) as err:
                raise DataError(f"{path}: sample {sample.id!r} cannot be written as JSON: {err}") from None


class _SetTwice(Exception):
    """A key that occurs twice in one JSON object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raise `_SetTwice` if a key occurs twice, as either value could be meant."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _SetTwice(next(key for key in keys if keys.count(key) > 1))
    return made


def _read_text(text: str, default_id: str) -> tuple[Sample | None, list[str]]:
    try:
        row = json.loads(text, object_pairs_hook=_object)
    except _SetTwice as err:
        return None, [f"has the key {err.args[0]!r:.80} twice in one object: keep one of them"]
    except json.JSONDecodeError as err:
        return None, [f"is not JSON: {err.msg.removesuffix(' at')} at column {err.colno}"]
    except ValueError as err:  # a number of more digits than Python reads
        return None, [f"is not JSON that can be read: {err}"]
    except RecursionError:
        return None, ["is not JSON that can be read: it is nested too deeply"]
    return read_row(row, default_id)


def _gather_conditions(row: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the row with conditions that are keys of the line moved into `conditions`, and their problems."""
    own = {key: row[key] for key in CONDITION_KEYS if key in row}
    if empty := ", ".join(key for key, value in own.items() if value is None):
        return row, [f"{empty} is null: leave it out, or give it a value"]
    if not own:
        return row, []
    others = row.get("conditions", {})
    if not isinstance(others, dict):
        return row, []  # its type is checked later
    if twice := sorted(own.keys() & others.keys()):
        return row, [f"{', '.join(twice)} stands both in the line and in its 'conditions'"]
    return {key: value for key, value in row.items() if key not in own} | {"conditions": own | others}, []


def _odd_turns(turns: Any) -> list[str]:
    """Return the problems of messages: missing roles, contents of a wrong type, no message of the user."""
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        return []  # there are none, or their type is checked later
    problems = []
    for number, turn in enumerate(turns):
        content = turn.get("content")
        parts = content if isinstance(content, list) else []
        if not isinstance(turn.get("role"), str):
            problems.append(f"messages.{number}: has no role, such as 'user'")
        if not isinstance(content, str | list) or not all(isinstance(part, dict) for part in parts):
            problems.append(f"messages.{number}: its content is neither a text nor a list of parts with a 'type'")
    if not any(turn.get("role") == "user" for turn in turns):
        problems.append("messages: none has the role 'user'")
    return problems


def _unknown_keys(row: Mapping[str, Any], schema: type) -> list[str]:
    known = known_keys(schema)
    problems = []
    for key in row:
        if key not in known:
            hint = did_you_mean(key, known) or "what a reward needs to know goes into 'metadata'"
            problems.append(f"{key!r} is not a key of {schema.__name__}: {hint}")
    return problems


def known_keys(schema: type = Sample) -> list[str]:
    """Return the keys that a line may have."""
    return [field.name for field in fields(schema)] + (list(CONDITION_KEYS) if schema is Sample else [])


def line_text(sample: Sample) -> str:
    """Return the line that `write_samples` writes, with its line break."""
    return json.dumps(sample_line(sample), ensure_ascii=False) + "\n"


def sample_line(sample: Sample) -> dict[str, Any]:
    """Return the JSON object of a sample: its fields that differ from their defaults."""
    row = asdict(sample)
    for field in fields(Sample):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if row[field.name] == default:
            del row[field.name]
    return row
