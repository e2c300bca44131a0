"""What readers of benchmarks share: entries that know where they stand, and paths that stay in their folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mmrl.errors import DataError


@dataclass(frozen=True)
class Entry:
    """One object of a file; its methods give a field of the type that is due, or raise `DataError` naming the place."""

    place: str  # "refcoco_val.jsonl:12", or "testmini.json, entry '12'"
    fields: Mapping[str, Any]

    def text(self, key: str) -> str:
        """A text with something in it."""
        value = self._get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a text that is not empty")
        return value

    def number(self, key: str) -> float:
        """A number."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        return value

    def count(self, key: str) -> int:
        """A whole number from 0 up; 3.0 is one."""
        value = self.number(key)
        if value != int(value) or value < 0:
            raise self.wrong(key, "a whole number from 0 up")
        return int(value)

    def texts(self, key: str) -> list[str]:
        """A list of texts."""
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(key, "a list of texts")
        return value

    def numbers(self, key: str, size: int) -> list[float]:
        """A list of so many numbers."""
        value = self._get(key)
        right = isinstance(value, list) and len(value) == size
        if not right or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in value):
            raise self.wrong(key, f"a list of {size} numbers")
        return [float(n) for n in value]

    def entries(self, key: str) -> list[Entry]:
        """A list of objects."""
        return entries_of(self._get(key), f"{self.place}, {key}")

    def wrong(self, key: str, due: str) -> DataError:
        """What is to be raised about a field."""
        return DataError(f"{self.place}: {key} is {self.fields.get(key)!r:.80}; {due} is due")

    def _get(self, key: str) -> Any:
        if key not in self.fields:
            known = ", ".join(map(str, self.fields)) or "none"
            raise DataError(f"{self.place}: there is no key {key!r}; there are {known}")
        return self.fields[key]


def json_lines(path: Path) -> Iterator[Entry]:
    """The objects of a JSON Lines file; blank lines are none."""
    for number, line in text_lines(path):
        place = f"{path}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as err:
            raise DataError(f"{place}: is not JSON: {err}") from None
        if not isinstance(value, dict):
            raise DataError(f"{place}: is {value!r:.60}; an object with keys is due")
        yield Entry(place, value)


def json_value(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: is not JSON: {err}") from None


def entries_of(value: Any, place: str) -> list[Entry]:
    """The objects of a list, or of a map by their keys."""
    if isinstance(value, dict):
        named: Sequence[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        named = list(enumerate(value))
    else:
        raise DataError(f"{place}: is {value!r:.60}; a list of objects is due")
    found = []
    for name, fields in named:
        if not isinstance(fields, dict):
            raise DataError(f"{place}, entry {name!r}: is {fields!r:.60}; an object with keys is due")
        found.append(Entry(f"{place}, entry {name!r}", fields))
    return found


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers from 1."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            yield number, line.strip()


def read_text(path: Path) -> str:
    """A whole file of UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read: {err}") from None


def files_in(folder: Path, *patterns: str) -> list[Path]:
    """The files that match the first pattern that any file matches, sorted.

    Raises:
        DataError: no file matches any.
    """
    for pattern in patterns:
        if found := sorted(path for path in folder.glob(pattern) if path.is_file()):
            return found
    raise DataError(f"{folder}: there is no file {' or '.join(patterns)} in it")


def inside(folder: Path, name: str, place: str) -> str:
    """The path of a medium that a file names, counted from a folder.

    What lies in the folder may be a link to elsewhere, which its owner made; what a file says may not lead out of it.

    Raises:
        DataError: the name is absolute or leads out of the folder, or nothing lies there.
    """
    given = PurePosixPath(name.replace("\\", "/"))
    if given.is_absolute() or ".." in given.parts or ":" in given.parts[0]:
        raise DataError(f"{place}: {name!r:.80} leads out of {folder}, where all its media are due")
    path = folder / given
    if not path.is_file():
        raise DataError(f"{place}: there is no file {path}")
    return str(path)
