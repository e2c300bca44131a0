"""Sources of samples: JSON Lines, prompts as text, CSV, Parquet, and data sets of Hugging Face.

    data.path: mine.jsonl                     one sample a line
    data.path: mine.txt                       one prompt a line
    data.path: mine.csv                       one sample a row, all cells as texts, under a row of names
    data.path: mine.parquet                   one sample a row (needs pyarrow)
    data.path: folder                         written by datasets' `save_to_disk` (needs datasets); folder:split
    data.path: hf:owner/name:split            from the Hub; hf:owner/name/config:split with a configuration

Columns are the keys of a sample; `columns` renames columns of other names. As a table has one schema, empty cells count
as absent, and columns that are not keys go into `metadata`, unless they look like a misspelt key. Images stored in a
table as bytes become data URIs, all of them in memory: beyond a few GB, write them to files.
"""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mmrl.data.jsonl import Line, known_keys, line_text, read_row, scan_samples, write_samples
from mmrl.data.media.decode import with_media_in, with_media_seen_from
from mmrl.data.media.sample_media import CONDITION_KEYS
from mmrl.data.media.uris import data_uri
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.suggestions import did_you_mean

_HUB = re.compile(r"hf:(?P<name>[^:]+)(?::(?P<split>[^:]+))?")
_LISTS = ("images", "videos")
_ASKS = {"prompt", "messages", "conditions", *CONDITION_KEYS}
"""The keys of which a sample has at least one."""
MOST_CHARACTERS = 2**31 - 1
"""Characters of a CSV cell, which may be a picture as a data URI; Python's own limit is 131,072."""
_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x1a\x45\xdf\xa3", "video/webm"),
)


def load_source(path: str, columns: Mapping[str, str] | None = None) -> list[Sample]:
    """Return the samples of any source, with media paths resolved against its folder; `columns`: {column: key}.

    Raises:
        DataError: the source or a row cannot be read, or a required library is not installed.
    """
    samples: list[Sample] = []
    for line in scan_source(path, columns):
        if line.problems or line.sample is None:
            raise DataError(f"{locate(path, line.number)}: {line.problems[0]}")
        samples.append(line.sample)
    if not samples:
        raise DataError(f"{path}: holds no samples")
    return samples


def write_source(samples: Sequence[Sample], path: Path | str) -> None:
    """Write samples as JSON Lines for `load_source`, which finds the media that they name from the working directory.

    Raises:
        DataError: a sample cannot be written as JSON.
    """
    write_samples(_seen_from(samples, path), path)


def source_text(samples: Sequence[Sample], path: Path | str) -> str:
    """Return what `write_source` writes into a file."""
    return "".join(map(line_text, _seen_from(samples, path)))


def _seen_from(samples: Sequence[Sample], path: Path | str) -> list[Sample]:
    return [with_media_seen_from(sample, Path(path).parent) for sample in samples]


def scan_source(path: str, columns: Mapping[str, str] | None = None) -> Iterator[Line]:
    """Yield the lines or rows of a source, invalid ones with all their problems.

    Raises:
        DataError: the source cannot be read.
    """
    if not _is_table(path) and Path(path).is_dir():
        raise DataError(f"{path}: is a folder, and save_to_disk of datasets did not write it: name a file in it")
    if not _is_table(path) and not columns:
        lines = scan_samples(path)
    elif not _is_table(path):
        raise DataError(f"{path}: columns can be renamed in tables only; in JSON Lines, write the keys of a sample")
    else:
        lines = _scan_rows(path, columns or {})
    folder = None if path.startswith("hf:") else Path(path).parent
    for line in lines:
        found = line.sample if line.sample is None or folder is None else with_media_in(line.sample, folder)
        yield Line(line.number, found, line.problems)


def table_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as {column: JSON value}, with media in bytes as data URIs.

    Raises:
        DataError: the table cannot be read, or a required library is not installed.
    """
    for row in _rows(path):
        yield {column: _plain(cell) for column, cell in row.items()}


def locate(path: str, number: int) -> str:
    """Return the name of a line or row in messages."""
    return f"{path}: row {number}" if _is_table(path) else f"{path}:{number}"


def _is_table(path: str) -> bool:
    return path.startswith("hf:") or path.endswith((".csv", ".parquet")) or _saved(path) is not None


def _saved(path: str) -> Path | None:
    """Return the folder that `save_to_disk` wrote, of one split or of several; None for any other path."""
    for folder in (Path(path), Path(path.rpartition(":")[0] or path)):
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            return folder
    return None


def _scan_rows(path: str, columns: Mapping[str, str]) -> Iterator[Line]:
    ids: dict[str, int] = {}
    stem = Path(path.removeprefix("hf:").partition(":")[0]).stem
    for number, row in enumerate(_rows(path)):
        if number == 0 and (missing := ", ".join(columns.keys() - row.keys())):
            raise DataError(f"{path}: has no column {missing}; it has {', '.join(row)}")
        fields, problems = _as_sample_row(row, columns)
        if number == 0 and not problems and not _ASKS & {columns.get(column, column) for column in row}:
            origin = " by its first row" if path.endswith(".csv") else ""
            raise DataError(
                f"{path}: has no column prompt, messages or conditions; its columns{origin} are {', '.join(row)}"
            )
        sample, more = read_row(fields, f"{stem}-{number}") if not problems else (None, [])
        problems += more
        if sample is not None and (first := ids.setdefault(sample.id, number)) != number:
            problems = [f"the id {sample.id!r} is already that of row {first}"]
        yield Line(number, sample, tuple(problems))


def _csv_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file in UTF-8; an empty cell is None."""
    csv.field_size_limit(MOST_CHARACTERS)
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or ()
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DataError(f"{path}: the first row names the column {twice[0]!r} twice: keep one of them")
            for number, row in enumerate(reader):
                if None in row:
                    raise DataError(
                        f"{path}: row {number} (line {reader.line_num}) has more cells than there are columns: write "
                        "a text with a comma between double quotes"
                    )
                yield {column: cell or None for column, cell in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise DataError(f"{path}: cannot be read as CSV in UTF-8: {err}") from None


def _rows(path: str) -> Iterator[dict[str, Any]]:
    if path.endswith(".csv"):
        yield from _csv_rows(path)
        return
    if path.endswith(".parquet"):
        parquet = _require("pyarrow.parquet", "Parquet", "pyarrow")
        arrow = _require("pyarrow", "Parquet", "pyarrow")
        try:
            batches = parquet.ParquetFile(path).iter_batches(batch_size=256)
            for batch in batches:
                yield from batch.to_pylist()
        except (OSError, arrow.ArrowException) as err:
            raise DataError(f"{path}: cannot be read as Parquet: {err}") from None
        return
    table = _data_set(path)
    for batch in table.with_format("arrow").iter(batch_size=256):
        yield from batch.to_pylist()


def _data_set(path: str) -> Any:
    """Return one split as a `datasets.Dataset`."""
    datasets = _require("datasets", "a data set of Hugging Face", "datasets")
    folder = _saved(path)
    try:
        if folder is not None:
            found = datasets.load_from_disk(str(folder))
            return _split(found, "" if folder == Path(path) else path.rpartition(":")[2], path)
        hub = _HUB.fullmatch(path)
        if hub is None:
            raise DataError(f"{path}: write hf:owner/name:split")
        name, configuration = hub["name"], None
        if name.count("/") == 2 and not Path(name).exists():
            name, _, configuration = name.rpartition("/")
        return _split(datasets.load_dataset(name, configuration), hub["split"] or "", path)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as err:
        if isinstance(err, DataError):
            raise
        raise DataError(f"{path}: cannot be loaded: {err}") from None


def _split(found: Any, split: str, path: str) -> Any:
    if not hasattr(found, "keys"):
        return found
    if not split and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        there = ", ".join(f"{path.removesuffix(f':{split}')}:{each}" for each in found)
        raise DataError(f"{path}: has no split {split!r}; there are {there}")
    return found[split]


def _as_sample_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return a row of a table as the object of a JSON line, and its problems."""
    known = known_keys()
    fields: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    problems: list[str] = []
    for column, cell in row.items():
        key = columns.get(column, column)
        value = _plain(cell)
        if value is None:
            continue
        if key in known:
            fields[key] = [value] if key in _LISTS and not isinstance(value, list) else value
        elif column in columns:
            problems.append(f"columns: {key!r}, to which {column!r} is renamed, is not a key of a sample")
        elif hint := did_you_mean(key, known, likeness=0.75):
            problems.append(f"{column!r} is not a key of a sample: {hint} Rename the column")
        else:
            metadata[key] = value
    if metadata:
        own = fields.get("metadata", {})
        fields["metadata"] = metadata | own if isinstance(own, dict) else own
    return fields, problems


def _plain(value: Any) -> Any:
    """Return a cell as a JSON value: without empty entries, and with media in bytes as data URIs."""
    if isinstance(value, bytes):
        return data_uri(value, _kind_of(value))
    if isinstance(value, Mapping):
        if value.keys() == {"bytes", "path"}:  # the form in which datasets stores images and videos
            return _plain(value["bytes"]) if value["bytes"] is not None else value["path"]
        return {key: plain for key, each in value.items() if (plain := _plain(each)) is not None} or None
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _kind_of(content: bytes) -> str:
    for start, kind in _SIGNATURES:
        if content.startswith(start):
            return kind
    if content[:4] == b"RIFF":
        return "image/webp" if content[8:12] == b"WEBP" else "video/x-msvideo"
    return "video/mp4" if content[4:8] == b"ftyp" else "application/octet-stream"


def _require(module: str, what: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"reading {what} needs {package}, which is not installed: pip install {package}") from None
