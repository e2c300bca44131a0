"""The folder of a comparison: what was asked, and what each subject answered, batch by batch.

settings.json                    what the comparison is of; its digest is in the folder's name
rows/SUBJECT.jsonl               a line a row, appended and put on the disk after each batch
samples/SUBJECT.jsonl            the samples as the subject was asked, without their media
pictures/SUBJECT/00012-0.png     what it drew: sample 12, draw 0; larger pictures as .jpg, at most 512 pixels wide
result.json, result.md, result.html

Whatever kills a comparison, the batches before it stand: a half-written line is dropped, and so is the batch that it
belongs to. The same command goes on with the next batch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import TypeAdapter, ValidationError

from mmrl.benchmarks.metrics import Row
from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.sample import Sample
from mmrl.errors import DataError, ResultError
from mmrl.evaluation.comparison.estimates import Number
from mmrl.evaluation.comparison.samples import Answers

EXACT = 128  # pixels of the longer side up to which pictures are kept as they are
LARGEST = 512  # pixels of the longer side of what is kept of others
NOT_KEPT = "not kept"
_UNFIT = re.compile(r"[^A-Za-z0-9._@-]+")


@dataclass(frozen=True)
class Line:
    """One row on the disk."""

    batch: int
    sample: int  # its number
    draw: int
    id: str
    scores: Mapping[str, Number]  # {name: value}, NaN where there is none
    status: Mapping[str, str]
    why: Mapping[str, str] = field(default_factory=dict)  # {reward: why it could not score, or could not read}
    answer: str | None = None
    tokens: int | None = None


_LINE = TypeAdapter(Line)


class SubjectStore:
    """What is kept of one subject."""

    def __init__(self, folder: Path, subject: str) -> None:
        """`subject` is a name of its own among those of the folder, fit for a file: see `file_name`."""
        self.rows_path = folder / "rows" / f"{subject}.jsonl"
        self.samples_path = folder / "samples" / f"{subject}.jsonl"
        self.pictures = folder / "pictures" / subject

    def resume(self, due: Sequence[int]) -> list[Line]:
        """The rows of the batches that are finished, where batch n is to have `due[n]` rows; the file is cut to them.

        Raises:
            ResultError: the file is not one that a comparison with these settings wrote.
        """
        if not self.rows_path.exists():
            return []
        text = self.rows_path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        lines = [self._parsed(line, number) for number, line in enumerate(whole.splitlines(keepends=True), start=1)]
        kept: list[Line] = []
        for batch, size in enumerate(due):
            mine = lines[len(kept) : len(kept) + size]
            if [line.batch for line in mine] != [batch] * size:
                break
            kept += mine
        size_kept = sum(len(line) for line in whole.splitlines(keepends=True)[: len(kept)])
        if size_kept != len(text):
            with self.rows_path.open("rb+") as file:
                file.truncate(size_kept)
        return kept

    def append(self, lines: Sequence[Line]) -> None:
        """Add the rows of a batch; when it returns they are on the disk."""
        self.rows_path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(_plain(asdict(line)), ensure_ascii=False) + "\n" for line in lines)
        with self.rows_path.open("ab") as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[Line]:
        """All rows.

        Raises:
            ResultError: there are none, or a line is none of a comparison.
        """
        try:
            content = self.rows_path.read_bytes().splitlines()
        except OSError as err:
            raise ResultError(f"{self.rows_path}: cannot be read: {err.strerror}") from None
        return [self._parsed(line, number) for number, line in enumerate(content, start=1)]

    def save_samples(self, samples: Sequence[Sample]) -> None:
        """Keep what was asked, without media: those stand where the data are."""
        write_samples([_without_media(sample) for sample in samples], self.samples_path)

    def samples(self) -> list[Sample]:
        """What was asked.

        Raises:
            ResultError: it was not kept, or is damaged.
        """
        try:
            return read_samples(self.samples_path)
        except (OSError, DataError) as err:
            raise ResultError(f"{self.samples_path}: cannot be read: {err}") from None

    def answers(self, lines: Sequence[Line] | None = None, draws: int | None = None) -> Answers:
        """Rows and samples as metrics read them.

        Raises:
            ResultError: as `lines` and `samples`, or the two do not fit.
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
        """Keep a picture: a small one as it is, a larger one made smaller."""
        self.pictures.mkdir(parents=True, exist_ok=True)
        path = self.pictures / f"{sample:05d}-{draw}.png"
        if max(image.size) <= EXACT:
            image.save(path)
            return
        small = image.convert("RGB")
        small.thumbnail((LARGEST, LARGEST))
        small.save(path.with_suffix(".jpg"), quality=92)

    def picture(self, sample: int, draw: int = 0) -> Image.Image | None:
        """What was drawn; None where it was a text, or is not kept."""
        for path in (self.pictures / f"{sample:05d}-{draw}{suffix}" for suffix in (".png", ".jpg")):
            if path.is_file():
                with Image.open(path) as opened:
                    return opened.convert("RGB")
        return None

    def _parsed(self, line: bytes, number: int) -> Line:
        try:
            return _LINE.validate_json(line)
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            at = ".".join(map(str, first["loc"])) or "the line"
            raise ResultError(
                f"{self.rows_path}:{number}: is no row of a comparison: {at}: {first['msg']}; "
                "delete the file to have it made again"
            ) from None


def file_name(name: str, digest: str) -> str:
    """A subject's name, fit for a file: its end, and what tells it apart.

    >>> file_name("runs/quickstart/seed-0@base", "0a1b2c3d4e5f")
    'quickstart-seed-0@base-0a1b2c3d'
    """
    short = "-".join(_UNFIT.sub("-", part) for part in Path(name).parts[-2:] if part not in ("/", "..", "."))
    return f"{short[-60:].strip('-.')}-{digest[:8]}"


def _without_media(sample: Sample) -> Sample:
    """Conditions keep their names, by which a sample without a prompt is one."""
    conditions = {k: NOT_KEPT if isinstance(v, str) else v for k, v in sample.conditions.items()}
    return replace(sample, images=(), videos=(), mask=None, conditions=conditions)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without what is empty, and with null for what is not a number."""
    scores = {name: value if math.isfinite(value) else None for name, value in row["scores"].items()}
    return {key: value for key, value in (row | {"scores": scores}).items() if value not in (None, {})}
