"""The folder of a comparison: the samples, and the answers and scores of each subject, batch by batch.

settings.json                    data, rewards and sampling; their digest is in the folder's name
rows/SUBJECT.jsonl               one line per row, appended and flushed to disk after each batch
samples/SUBJECT.jsonl            the samples as the subject received them, without their media
pictures/SUBJECT/00012-0.png     the picture of sample 12, draw 0; larger ones as .jpg, at most 512 pixels wide
result.json, result.md, result.html

A killed comparison keeps its finished batches: a half-written line is dropped, and so is the batch that it belongs to.
The same command continues with the next batch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from mmrl.atomic_io import append_durably
from mmrl.benchmarks.metrics import Row
from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.sample import Sample
from mmrl.errors import DataError, ResultError
from mmrl.evaluation.comparison.estimates import Answers, Number

EXACT = 128  # pixels of the longer side up to which pictures are kept unchanged
LARGEST = 512  # pixels of the longer side to which other pictures are reduced
NOT_KEPT = "not kept"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+")


@dataclass(frozen=True)
class ComparisonRow:
    """A line of rows/SUBJECT.jsonl: one draw of one sample."""

    batch: int
    sample: int  # the number of the sample, from 0
    draw: int
    id: str
    scores: Mapping[str, Number]  # {name: value}, NaN where there is none
    status: Mapping[str, str]
    reasons: Annotated[Mapping[str, str], Field(validation_alias=AliasChoices("why", "reasons"))] = field(
        default_factory=dict
    )
    """{reward: the reason why it has no score, or the worst}; the key in the file is `why`."""
    answer: str | None = None
    tokens: int | None = None


_LINE = TypeAdapter(ComparisonRow)


class SubjectStore:
    """The rows, samples and pictures of one subject in the folder of a comparison."""

    def __init__(self, folder: Path, subject: str) -> None:
        """Set the paths; `subject` is a file name that is unique in the folder: see `file_name`."""
        self.rows_path = folder / "rows" / f"{subject}.jsonl"
        self.samples_path = folder / "samples" / f"{subject}.jsonl"
        self.pictures = folder / "pictures" / subject

    def resume(self, sizes: Sequence[int]) -> list[ComparisonRow]:
        """Return the rows of the finished batches, where batch n has `sizes[n]` rows; the file is truncated to them.

        Raises:
            ResultError: a line is no row of a comparison.
        """
        if not self.rows_path.exists():
            return []
        text = self.rows_path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        lines = [self._parsed(line, number) for number, line in enumerate(whole.splitlines(keepends=True), start=1)]
        kept: list[ComparisonRow] = []
        for batch, size in enumerate(sizes):
            mine = lines[len(kept) : len(kept) + size]
            if [line.batch for line in mine] != [batch] * size:
                break
            kept += mine
        size_kept = sum(len(line) for line in whole.splitlines(keepends=True)[: len(kept)])
        if size_kept != len(text):
            with self.rows_path.open("rb+") as file:
                file.truncate(size_kept)
        return kept

    def append(self, lines: Sequence[ComparisonRow]) -> None:
        """Append the rows of a batch and flush them to disk.

        Half of a surrogate pair, as in an answer that a server cut off, becomes a question mark: it could not be read.
        """
        self.rows_path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(_plain(asdict(line)), ensure_ascii=False) + "\n" for line in lines)
        append_durably(self.rows_path, text.encode("utf-8", errors="replace"))

    def lines(self) -> list[ComparisonRow]:
        """Return all rows.

        Raises:
            ResultError: the file cannot be read, or a line is no row of a comparison.
        """
        try:
            content = self.rows_path.read_bytes().splitlines()
        except OSError as err:
            raise ResultError(f"{self.rows_path}: cannot be read: {err.strerror}") from None
        return [self._parsed(line, number) for number, line in enumerate(content, start=1)]

    def save_samples(self, samples: Sequence[Sample]) -> None:
        """Write the samples without their media, which stay where the data are."""
        write_samples([_without_media(sample) for sample in samples], self.samples_path)

    def samples(self) -> list[Sample]:
        """Return the samples, without their media.

        Raises:
            ResultError: the file is missing or damaged.
        """
        try:
            return read_samples(self.samples_path)
        except (OSError, DataError) as err:
            raise ResultError(f"{self.samples_path}: cannot be read: {err}") from None

    def answers(self, lines: Sequence[ComparisonRow] | None = None, draws: int | None = None) -> Answers:
        """Return rows and samples as metrics read them.

        Raises:
            ResultError: as `lines` and `samples`, or the two do not match.
        """
        lines = self.lines() if lines is None else lines
        samples = self.samples()
        draws = draws or 1 + max((line.draw for line in lines), default=0)
        if [(line.sample, line.draw) for line in lines] != [(n, d) for n in range(len(samples)) for d in range(draws)]:
            raise ResultError(f"{self.rows_path}: does not hold {draws} rows of each of {len(samples)} samples")
        names = dict.fromkeys(name for line in lines for name in line.scores)
        nothing = dict.fromkeys(names, math.nan)
        rows = [Row(samples[each.sample], each.answer, nothing | dict(each.scores), each.draw) for each in lines]
        return Answers(rows, draws)

    def save_picture(self, image: Image.Image, sample: int, draw: int) -> None:
        """Write a picture: a small one unchanged, a larger one reduced."""
        self.pictures.mkdir(parents=True, exist_ok=True)
        path = self.pictures / f"{sample:05d}-{draw}.png"
        if max(image.size) <= EXACT:
            image.save(path)
            return
        small = image.convert("RGB")
        small.thumbnail((LARGEST, LARGEST))
        small.save(path.with_suffix(".jpg"), quality=92)

    def picture(self, sample: int, draw: int = 0) -> Image.Image | None:
        """Return a picture; None for a text, or if it was not kept."""
        for path in (self.pictures / f"{sample:05d}-{draw}{suffix}" for suffix in (".png", ".jpg")):
            if path.is_file():
                with Image.open(path) as opened:
                    return opened.convert("RGB")
        return None

    def _parsed(self, line: bytes, number: int) -> ComparisonRow:
        try:
            return _LINE.validate_json(line)
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            at = ".".join(map(str, first["loc"])) or "the line"
            raise ResultError(
                f"{self.rows_path}:{number}: is no row of a comparison: {at}: {first['msg']}; "
                "delete the file and run the comparison again"
            ) from None


def file_name(name: str, digest: str) -> str:
    """Return a file name for a subject: the end of its name, and its digest.

    >>> file_name("runs/quickstart/seed-0@base", "0a1b2c3d4e5f")
    'quickstart-seed-0@base-0a1b2c3d'
    """
    short = "-".join(_NOT_IN_NAMES.sub("-", part) for part in Path(name).parts[-2:] if part not in ("/", "..", "."))
    return f"{short[-60:].strip('-.')}-{digest[:8]}"


def _without_media(sample: Sample) -> Sample:
    """Return the sample without media. Conditions keep their names: a sample without a prompt needs one."""
    conditions = {k: NOT_KEPT if isinstance(v, str) else v for k, v in sample.conditions.items()}
    return replace(sample, images=(), videos=(), mask=None, conditions=conditions)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without empty values, with null for NaN, and with `reasons` under its key `why`."""
    scores = {name: value if math.isfinite(value) else None for name, value in row["scores"].items()}
    named = {"why" if key == "reasons" else key: value for key, value in (row | {"scores": scores}).items()}
    return {key: value for key, value in named.items() if value not in (None, {})}
