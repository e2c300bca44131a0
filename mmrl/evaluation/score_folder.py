"""Scoring of existing pictures: pair each with its prompt, score it by every reward, write tables."""

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

from mmrl.benchmarks.records import read_text
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
"""Pictures in memory together; a group may exceed it if rewards compare the pictures of a group."""
PIXELS_AT_ONCE = 2**27
"""Pixels of those pictures: 400 MB as RGB."""
MOST_NAMES = 5  # in a message
HEAD = ("id", "picture", "prompt", "source")
_BROKEN = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True)
class Pairing:
    """A picture and the sample that it was made for."""

    picture: Path
    sample: Sample
    group: int  # equal for the pictures of one prompt


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one picture."""

    pairing: Pairing
    values: Mapping[str, float]  # NaN where the scorer failed
    status: Mapping[str, str]
    failures: Mapping[str, str] = field(default_factory=dict)  # {reward: kind}
    detail: Mapping[str, str] = field(default_factory=dict)
    lower: frozenset[str] = frozenset()  # the names where lower is better


def pair_up(pictures: Path, prompts: Path) -> tuple[list[Pairing], int]:
    """Return the pictures of a folder with their prompts, and the number of pictures that belong to none.

    `prompts` is JSON Lines, where the sample "a1" has the picture a1.png (.jpg, .jpeg, .webp) or all pictures of the
    folder a1; or a text file whose lines are the prompts of all pictures in the natural order of their names (2.png
    before 10.png).

    Raises:
        DataError: a file or folder cannot be used, or pictures and prompts do not match.
    """
    if not pictures.is_dir():
        raise DataError(f"{pictures}: " + ("is no folder" if pictures.exists() else "there is no such folder"))
    if prompts.suffix == ".txt":
        return _by_line(pictures, prompts), 0
    if prompts.suffix != ".jsonl":
        raise DataError(f"{prompts}: must be a .jsonl file of samples, or a .txt file with a prompt a line")
    return _by_id(pictures, prompts)


def score(pairings: Sequence[Pairing], suite: RewardSuite) -> Iterator[list[ScoreRow]]:
    """Yield the rows of chunks of pictures, in order; a picture that cannot be read fails every reward."""
    for chunk in _chunks(pairings, suite.needs_full_groups):
        inputs: list[RewardInput] = []
        readable: list[int] = []
        rows: dict[int, ScoreRow] = {}
        for place, pairing in enumerate(chunk):
            try:
                image = open_picture(pairing.picture)
            except DataError as err:
                rows[place] = ScoreRow(
                    pairing,
                    values=dict.fromkeys(suite.names, math.nan),
                    status=dict.fromkeys(suite.names, Status.ERROR.value),
                    failures=dict.fromkeys(suite.names, "unreadable"),
                    detail=dict.fromkeys(suite.names, str(err)),
                )
                continue
            readable.append(place)
            inputs.append(reward_input(pairing.sample, image, pairing.group, str(pairing.picture)))
        if inputs:
            pending = suite.submit(inputs)
            output, lower = pending.result(), frozenset(_lower(pending))
            rows |= {place: _row(chunk[place], output, i, lower) for i, place in enumerate(readable)}
        yield [rows[place] for place in range(len(chunk))]


def open_picture(path: Path) -> Image.Image:
    """Return the picture as rewards see it: upright, RGB, and on white where it is transparent.

    Raises:
        DataError: it cannot be read, or exceeds the size limit of rewards, which is checked before decoding.
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
    """Return all names that have scores, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.values))


def counts(rows: Sequence[ScoreRow], name: str) -> Counter[str]:
    """Return the number of pictures by status of one score."""
    return Counter(row.status[name] for row in rows if name in row.status)


def kinds(rows: Sequence[ScoreRow], name: str) -> Counter[str]:
    """Return the number of unscored pictures by kind of failure."""
    return Counter(row.failures[name] for row in rows if name in row.failures)


def reason(rows: Sequence[ScoreRow], name: str) -> str:
    """Return the most frequent text of why pictures could not be scored; "" if all were."""
    texts = Counter(row.detail[name] for row in rows if name in row.failures and row.detail.get(name))
    return texts.most_common(1)[0][0] if texts else ""


def lower_names(rows: Sequence[ScoreRow]) -> set[str]:
    """Return the names where lower is better: all scores of rewards with that direction."""
    return {name for row in rows for name in row.lower}


def known(rows: Sequence[ScoreRow], name: str) -> list[float]:
    """Return all known values of one score."""
    return [value for row in rows if math.isfinite(value := row.values.get(name, math.nan))]


def open_lines(folder: Path) -> TextIO:
    """Open scores.jsonl, which contains all results. File names that are not UTF-8 are escaped."""
    return (folder / "scores.jsonl").open("w", encoding="utf-8", errors="backslashreplace")


def write_lines(rows: Sequence[ScoreRow], file: TextIO) -> None:
    """Write rows as JSON Lines and flush them: finished scores survive a later crash."""
    for row in rows:
        sample = row.pairing.sample
        texts = [sample.id, str(row.pairing.picture), sample.prompt, sample.source]
        scores = {name: value if math.isfinite(value) else None for name, value in row.values.items()}
        results = {"scores": scores, "status": row.status, "failures": row.failures, "detail": row.detail}
        file.write(json.dumps(dict(zip(HEAD, texts, strict=True)) | results, ensure_ascii=False) + "\n")
    file.flush()


def write_table(rows: Sequence[ScoreRow], folder: Path) -> None:
    """Write scores.csv. A text that a spreadsheet would read as a formula is prefixed with an apostrophe."""
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
    lines = read_text(prompts).split("\n")  # splitlines would split at U+2028
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
        except (OSError, RuntimeError):  # an id that is no valid file name, or a loop of links
            found = []
        if not found:
            missing.append(sample.id)
        pairings += [Pairing(path, with_media_in(sample, prompts.parent), group) for path in found]
    if missing:
        more = f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
        raise DataError(
            f"{pictures}: no picture for {len(missing)} of {len(missing) + len({p.group for p in pairings})} samples: "
            f"{', '.join(missing[:MOST_NAMES])}{more}. The picture of {missing[0]!r} would be {missing[0]}.png "
            f"(or {', '.join(SUFFIXES[1:])}), or all pictures in the folder {missing[0]}"
        )
    used = {pairing.picture for pairing in pairings}
    return pairings, sum(path not in used for path in _pictures_in(pictures))


def _pictures_of(id: str, folder: Path) -> list[Path]:
    """Return the pictures of one sample, which may be in a folder below, and never outside."""
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
    """Return a sort key that compares numbers in a name by value."""
    parts = re.split(r"([0-9]{1,4000})", path.name)  # every second part is a number, and "²" is in none
    return [(0, int(part), "") if place % 2 else (1, 0, part) for place, part in enumerate(parts) if part]


def _chunks(pairings: Sequence[Pairing], whole_groups: bool) -> Iterator[list[Pairing]]:
    """Yield chunks that fit in memory together; the pictures of a group need not be adjacent."""
    units: dict[int, list[Pairing]] = {}
    for place, pairing in enumerate(pairings):
        units.setdefault(pairing.group if whole_groups else place, []).append(pairing)
    chunk: list[Pairing] = []
    pixels = 0
    for members in units.values():
        size = sum(_pixels(pairing.picture) for pairing in members)
        if chunk and (len(chunk) + len(members) > AT_ONCE or pixels + size > PIXELS_AT_ONCE):
            yield chunk
            chunk, pixels = [], 0
        chunk = [*chunk, *members]
        pixels += size
    if chunk:
        yield chunk


def _pixels(path: Path) -> int:
    """Return the pixels in the file's header; 0 for a picture that will not be decoded."""
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


def _as_number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(value)


def _as_text(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
