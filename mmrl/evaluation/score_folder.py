"""Scoring pictures that are there already: which prompt each belongs to, and what every reward says of it."""

from __future__ import annotations

import csv
import json
import math
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from PIL import Image

from mmrl.data.jsonl import read_samples
from mmrl.data.media.decode import with_media_in
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards import InvalidAnswer, RewardInput, RewardOutput, RewardSuite, Status, reward_input
from mmrl.rewards.core.image_input import MAX_PIXELS, answer_image
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.suite import PendingScores

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
AT_ONCE = 64
"""Pictures that are in memory together, or a whole group if that is more and rewards compare its pictures."""
PIXELS_AT_ONCE = 2**27
"""Pixels of those pictures, likewise: 400 MB as RGB."""
TOLD = 5  # names in a message
HEAD = ("id", "picture", "prompt", "source")
_BROKEN = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True)
class Pairing:
    """A picture and what it was drawn for."""

    picture: Path
    sample: Sample
    group: int  # the pictures of one prompt


@dataclass(frozen=True)
class ScoreRow:
    """What the rewards say of one picture."""

    pairing: Pairing
    values: Mapping[str, float]  # NaN where the scorer failed
    status: Mapping[str, str]
    failures: Mapping[str, str] = field(default_factory=dict)  # {reward: kind}
    detail: Mapping[str, str] = field(default_factory=dict)
    lower: frozenset[str] = frozenset()  # the names of which lower values are better


def pair_up(pictures: Path, prompts: Path) -> tuple[list[Pairing], int]:
    """The pictures of a folder with their prompts, and how many pictures belong to none.

    `prompts` is JSON Lines, where the sample "a1" has the picture a1.png (.jpg, .jpeg, .webp) or all pictures of the
    folder a1; or a text file whose lines are the prompts of all pictures in the order of their names, where 2.png
    stands before 10.png.

    Raises:
        DataError: a file or folder that cannot be used, or pictures and prompts that do not fit together.
    """
    if not pictures.is_dir():
        raise DataError(f"{pictures}: " + ("is no folder" if pictures.exists() else "there is no such folder"))
    if prompts.suffix == ".txt":
        return _by_line(pictures, prompts), 0
    if prompts.suffix != ".jsonl":
        raise DataError(f"{prompts}: must be a .jsonl file of samples, or a .txt file with a prompt a line")
    return _by_id(pictures, prompts)


def score(pairings: Sequence[Pairing], suite: RewardSuite) -> Iterator[list[ScoreRow]]:
    """The rows of some pictures after the other, in order; a picture that cannot be read fails every reward."""
    for chunk in _chunks(pairings, suite.needs_full_groups):
        inputs: list[RewardInput] = []
        readable: list[int] = []
        rows: dict[int, ScoreRow] = {}
        for place, pairing in enumerate(chunk):
            try:
                image = open_picture(pairing.picture)
            except DataError as err:
                rows[place] = _unreadable(pairing, suite.names, str(err))
                continue
            readable.append(place)
            inputs.append(reward_input(pairing.sample, image, pairing.group, str(pairing.picture)))
        if inputs:
            pending = suite.submit(inputs)
            output, lower = pending.result(), frozenset(_lower(pending))
            rows |= {place: _row(chunk[place], output, i, lower) for i, place in enumerate(readable)}
        yield [rows[place] for place in range(len(chunk))]


def open_picture(path: Path) -> Image.Image:
    """The picture as every reward sees it: upright, RGB, and with white where it is transparent.

    Raises:
        DataError: it cannot be read, or is larger than rewards look at, which is found before it is decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit of rewards is lower
            with Image.open(path) as opened:
                return answer_image(opened)
    except (*_BROKEN, InvalidAnswer, ScoringFailed) as err:
        reason = str(err).replace(str(path), "").strip(" :'") or type(err).__name__
        raise DataError(f"{path}: {reason}") from None


def score_names(rows: Sequence[ScoreRow]) -> list[str]:
    """All names that have scores, in the order in which they come."""
    return list(dict.fromkeys(name for row in rows for name in row.values))


def counts(rows: Sequence[ScoreRow], name: str) -> Counter[str]:
    """How many pictures had which status under a name."""
    return Counter(row.status[name] for row in rows if name in row.status)


def kinds(rows: Sequence[ScoreRow], name: str) -> Counter[str]:
    """How many pictures could not be scored, by kind."""
    return Counter(row.failures[name] for row in rows if name in row.failures)


def lower_names(rows: Sequence[ScoreRow]) -> set[str]:
    """The names of which lower values are better: all that a reward of that direction gives."""
    return {name for row in rows for name in row.lower}


def known(rows: Sequence[ScoreRow], name: str) -> list[float]:
    """All values under a name that there are."""
    return [value for row in rows if math.isfinite(value := row.values.get(name, math.nan))]


def open_lines(folder: Path) -> TextIO:
    """scores.jsonl, which holds everything. What is no UTF-8 in the name of a file stands in it as JSON's escapes."""
    return (folder / "scores.jsonl").open("w", encoding="utf-8", errors="backslashreplace")


def write_lines(rows: Sequence[ScoreRow], file: TextIO) -> None:
    """Write rows as JSON Lines, at once: what was scored is kept, whatever comes after it."""
    for row in rows:
        sample = row.pairing.sample
        texts = [sample.id, str(row.pairing.picture), sample.prompt, sample.source]
        scores = {name: value if math.isfinite(value) else None for name, value in row.values.items()}
        told = {"scores": scores, "status": row.status, "failures": row.failures, "detail": row.detail}
        file.write(json.dumps(dict(zip(HEAD, texts, strict=True)) | told, ensure_ascii=False) + "\n")
    file.flush()


def write_table(rows: Sequence[ScoreRow], folder: Path) -> None:
    """Write scores.csv. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    names = score_names(rows)
    with (folder / "scores.csv").open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.writer(file)
        table.writerow([*HEAD, *(column for name in names for column in (name, f"{name}.status", f"{name}.failure"))])
        for row in rows:
            sample = row.pairing.sample
            texts = [_as_text(t) for t in (sample.id, str(row.pairing.picture), sample.prompt, sample.source)]
            cells = [
                cell
                for name in names
                for cell in (_as_number(row.values.get(name)), row.status.get(name, ""), row.failures.get(name, ""))
            ]
            table.writerow([*texts, *cells])


def _by_line(pictures: Path, prompts: Path) -> list[Pairing]:
    try:
        lines = prompts.read_text(encoding="utf-8-sig").splitlines()
    except OSError as err:
        raise DataError(f"{prompts}: cannot be read: {err.strerror}") from None
    except UnicodeDecodeError as err:
        raise DataError(f"{prompts}: is not UTF-8 text: {err}") from None
    while lines and not lines[-1].strip():
        lines.pop()
    if empty := next((number for number, line in enumerate(lines, start=1) if not line.strip()), None):
        raise DataError(f"{prompts}:{empty}: is empty; each line is the prompt of one picture")
    found = _pictures_in(pictures)
    if len(found) != len(lines):
        raise DataError(
            f"{prompts} holds {len(lines)} prompts and {pictures} {len(found)} pictures ({', '.join(SUFFIXES)}): "
            "line by line, each picture needs its own. Samples in a .jsonl file find their pictures by id"
        )
    groups = {line: group for group, line in enumerate(dict.fromkeys(lines))}
    return [
        Pairing(picture, Sample(id=picture.stem, prompt=line.strip()), groups[line])
        for picture, line in zip(found, lines, strict=True)
    ]


def _by_id(pictures: Path, prompts: Path) -> tuple[list[Pairing], int]:
    pairings: list[Pairing] = []
    missing: list[str] = []
    for group, sample in enumerate(read_samples(prompts)):
        try:
            found = _pictures_of(sample.id, pictures)
        except (OSError, RuntimeError):  # an id that no file can be called by, or a loop of links
            found = []
        if not found:
            missing.append(sample.id)
        pairings += [Pairing(path, with_media_in(sample, prompts.parent), group) for path in found]
    if missing:
        more = f" and {len(missing) - TOLD} more" if len(missing) > TOLD else ""
        raise DataError(
            f"{pictures}: no picture for {len(missing)} of {len(missing) + len({p.group for p in pairings})} samples: "
            f"{', '.join(missing[:TOLD])}{more}. The picture of {missing[0]!r} would be {missing[0]}.png "
            f"(or {', '.join(SUFFIXES[1:])}), or all pictures in the folder {missing[0]}"
        )
    used = {pairing.picture for pairing in pairings}
    return pairings, sum(path not in used for path in _pictures_in(pictures))


def _pictures_of(id: str, folder: Path) -> list[Path]:
    """Of one sample, which may stand in a folder below, and never in one outside."""
    place, root = folder / id, folder.resolve()
    if "\0" in id or not place.name or not place.resolve().is_relative_to(root):
        return []
    names = dict.fromkeys(place.name + suffix for each in SUFFIXES for suffix in (each, each.upper()))
    single = [path for name in names if (path := place.with_name(name)).is_file()]
    single = [path for path in single if path.parent.resolve().is_relative_to(root)]
    several = _pictures_in(place) if place.is_dir() and place.resolve() != root else []
    if len(single) > 1 or (single and several):
        raise DataError(
            f"{folder}: {', '.join(path.name for path in (*single, *several[:1]))} could all be the picture of the "
            f"sample {id!r}: keep one of them, or put those that are to be scored into the folder {id}"
        )
    return single or several


def _pictures_in(folder: Path) -> list[Path]:
    return sorted(
        (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()), key=_natural
    )


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Numbers in a name count as numbers."""
    parts = re.split(r"([0-9]{1,4000})", path.name)  # every second part is a number, and "²" is in none
    return [(0, int(part), "") if place % 2 else (1, 0, part) for place, part in enumerate(parts) if part]


def _chunks(pairings: Sequence[Pairing], whole_groups: bool) -> Iterator[list[Pairing]]:
    """As many as may be in memory together; pictures of a whole group need not stand together."""
    units: dict[int, list[Pairing]] = {}
    for place, pairing in enumerate(pairings):
        units.setdefault(pairing.group if whole_groups else place, []).append(pairing)
    chunk: list[Pairing] = []
    held = 0
    for members in units.values():
        size = sum(_pixels(pairing.picture) for pairing in members)
        if chunk and (len(chunk) + len(members) > AT_ONCE or held + size > PIXELS_AT_ONCE):
            yield chunk
            chunk, held = [], 0
        chunk = [*chunk, *members]
        held += size
    if chunk:
        yield chunk


def _pixels(path: Path) -> int:
    """As the file's head says; 0 of a picture that will not be decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                size = opened.width * opened.height
    except _BROKEN:
        return 0
    return size if size <= MAX_PIXELS else 0


def _lower(scores: PendingScores) -> Iterator[str]:
    for part, column in zip(scores.suite.parts, scores.columns, strict=True):
        if part.reward.direction == "lower":
            yield from column.result().values


def _row(pairing: Pairing, output: RewardOutput, place: int, lower: frozenset[str]) -> ScoreRow:
    names = [name for name in output.values if name != TOTAL]
    failures = output.failures[place] if output.failures else {}
    return ScoreRow(
        pairing,
        {name: float(output.values[name][place]) for name in names},
        {name: output.status[name][place].value for name in names},
        {name: failure.kind for name, failure in failures.items() if name in names},
        {name: str(text) for name, text in output.detail[place].items() if text},
        lower,
    )


def _unreadable(pairing: Pairing, names: Sequence[str], why: str) -> ScoreRow:
    return ScoreRow(
        pairing,
        dict.fromkeys(names, math.nan),
        dict.fromkeys(names, Status.ERROR.value),
        dict.fromkeys(names, "unreadable"),
        dict.fromkeys(names, why),
    )


def _as_number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(value)


def _as_text(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
