"""Helpers of benchmark readers: JSON objects that know their place in a file, and paths that stay in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mmrl.errors import DataError


@dataclass(frozen=True)
class JsonRecord:
    """A JSON object of a file. Its methods return a field of the expected type, or raise `DataError` with the place."""

    place: str
    """The place in messages, such as `refcoco_val.jsonl:12` or `testmini.json, entry '12'`."""
    fields: Mapping[str, Any]

    def text(self, key: str) -> str:
        """Return a text that is not empty."""
        value = self._get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a text that is not empty")
        return value

    def any_text(self, key: str) -> str:
        """Return a text, which may be empty."""
        value = self._get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def number(self, key: str) -> float:
        """Return a number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        return value

    def count(self, key: str) -> int:
        """Return an integer >= 0; 3.0 counts as one."""
        value = self.number(key)
        if value != int(value) or value < 0:
            raise self.wrong(key, "a whole number from 0 up")
        return int(value)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(key, "a list of texts")
        return value

    def numbers(self, key: str, size: int) -> list[float]:
        """Return a list of `size` numbers."""
        value = self._get(key)
        right = isinstance(value, list) and len(value) == size
        if not right or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in value):
            raise self.wrong(key, f"a list of {size} numbers")
        return [float(n) for n in value]

    def records(self, key: str) -> list[JsonRecord]:
        """Return a list of objects."""
        return records_of(self._get(key), f"{self.place}, {key}")

    def wrong(self, key: str, expected: str) -> DataError:
        """Return the error for a field with a wrong value."""
        return DataError(f"{self.place}: {key} is {self.fields.get(key)!r:.80}; expected {expected}")

    def _get(self, key: str) -> Any:
        if key not in self.fields:
            known = ", ".join(map(str, self.fields)) or "none"
            raise DataError(f"{self.place}: there is no key {key!r}; there are {known}")
        return self.fields[key]


def json_lines(path: Path) -> Iterator[JsonRecord]:
    """Yield the objects of a JSON Lines file; blank lines are skipped."""
    for number, line in text_lines(path):
        place = f"{path}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as err:
            raise DataError(f"{place}: is not JSON: {err}") from None
        if not isinstance(value, dict):
            raise DataError(f"{place}: is {value!r:.60}; expected an object with keys")
        yield JsonRecord(place, value)


def json_value(path: Path) -> Any:
    """Return the value of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: is not JSON: {err}") from None


def entries_of(path: Path) -> Iterator[JsonRecord]:
    """Yield the objects of a JSON Lines file (`*.jsonl`), or of the list or object in a JSON file."""
    yield from json_lines(path) if path.suffix == ".jsonl" else records_of(json_value(path), str(path))


def entries_in(folder: Path, *patterns: str) -> Iterator[tuple[Path, int, JsonRecord]]:
    """Yield (file, number in it from 0, object) of the files that `files_in` finds."""
    for path in files_in(folder, *patterns):
        for number, entry in enumerate(entries_of(path)):
            yield path, number, entry


def records_of(value: Any, place: str) -> list[JsonRecord]:
    """Return the objects of a list, or the values of an object of objects."""
    if isinstance(value, dict):
        named: Sequence[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        named = list(enumerate(value))
    else:
        raise DataError(f"{place}: is {value!r:.60}; expected a list of objects")
    found = []
    for name, fields in named:
        if not isinstance(fields, dict):
            raise DataError(f"{place}, entry {name!r}: is {fields!r:.60}; expected an object with keys")
        found.append(JsonRecord(f"{place}, entry {name!r}", fields))
    return found


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of the lines of a file that are not blank."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):  # splitlines would split at U+2028
        if line.strip():
            yield number, line.strip()


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read: {err}") from None


def files_in(folder: Path, *patterns: str) -> list[Path]:
    """Return the sorted files that match the first pattern with any match.

    Raises:
        DataError: no file matches any pattern.
    """
    for pattern in patterns:
        if found := sorted(path for path in folder.glob(pattern) if path.is_file()):
            return found
    raise DataError(f"{folder}: there is no file {' or '.join(patterns)} in it")


def inside(folder: Path, name: str, place: str) -> str:
    """Return the path of a medium that a file names relative to a folder.

    A link in the folder may point elsewhere, since its owner made it; a name in a file must stay inside.

    Raises:
        DataError: the name is absolute or leads out of the folder, or there is no such file.
    """
    relative = PurePosixPath(name.replace("\\", "/"))
    if relative.is_absolute() or ".." in relative.parts or ":" in relative.parts[0]:
        raise DataError(f"{place}: {name!r:.80} leads out of {folder}, which must contain all its media")
    path = folder / relative
    if not path.is_file():
        raise DataError(f"{place}: there is no file {path}")
    return str(path)
