"""What checkpoints made of one prompt, side by side: rows are draws or guidance scales, columns are checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from PIL import Image

from mmrl.demo.scores import Scored
from mmrl.evaluation.image_grid import still
from mmrl.statistics.diversity import differing_pairs, pairwise_distance

TOTAL = "total"


@dataclass(frozen=True)
class Cell:
    """One answer, or why there is none."""

    media: Any = None  # a picture, a video as a list of pictures, or a text; None: see `problem`
    scored: Scored = field(default_factory=Scored)
    provenance: Mapping[str, str] = field(default_factory=dict)
    read: str = ""  # of a text, the answer that its reward reads in it
    problem: str = ""


@dataclass
class Grid:
    """Cells by (row, column); those that are not there yet are still being made."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]  # what each row is: seed 7 / 0, guidance 4
    prompt: str
    bases: Mapping[str, str]  # of each column its base
    cells: dict[tuple[int, str], Cell] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    watched: tuple[str, ...] = ()  # rewards that nothing was trained on

    @property
    def rewards(self) -> list[str]:
        """Names of all rewards, in order of appearance; held-out ones last."""
        names = list(dict.fromkeys(name for cell in self.cells.values() for name in cell.scored.values))
        return sorted(names, key=lambda name: name in self.watched)

    @property
    def headline(self) -> str:
        """The reward that says which is best: the total, or the first that is trained on; empty without any."""
        return TOTAL if TOTAL in self.rewards else next(iter(self.rewards), "")

    @property
    def best(self) -> str | None:
        """The column with the highest mean headline; None where nothing is scored."""
        means = {column: self.mean(column, self.headline) for column in self.columns}
        known = {column: mean for column, mean in means.items() if math.isfinite(mean)}
        return max(known, key=lambda column: known[column]) if known else None

    def mean(self, column: str, reward: str) -> float:
        """Over the rows that could be scored; NaN if none could."""
        values = [self.value(row, column, reward) for row in range(len(self.rows))]
        known = [value for value in values if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan

    def value(self, row: int, column: str | None, reward: str) -> float:
        """NaN where it is not known."""
        cell = self.cells.get((row, column or ""))
        return cell.scored.values.get(reward, math.nan) if cell else math.nan

    def made(self, column: str) -> list[Any]:
        """The media of a column."""
        found = [self.cells.get((row, column)) for row in range(len(self.rows))]
        return [cell.media for cell in found if cell is not None and cell.media is not None]

    def diversity(self, column: str) -> float | None:
        """Mean distance between a column's pictures (or share of pairs of texts that differ); None for one row."""
        return diversity(self.made(column))

    def distance(self, column: str) -> float | None:
        """Mean distance of a column's pictures from its base's with the same noise; None without a base beside it."""
        base = self.bases.get(column)
        pairs = [
            (self.cells[row, column].media, self.cells[row, base].media)
            for row in range(len(self.rows))
            if base is not None and base != column and {(row, column), (row, base)} <= self.cells.keys()
        ]
        found = [diversity(pair) for pair in pairs if None not in pair]
        known = [each for each in found if each is not None]
        return sum(known) / len(known) if known else None

    def hint(self, column: str) -> str:
        """A sentence where a trained reward rose from the base and a held-out one fell: a hint, from one prompt."""
        base = self.bases.get(column)
        if base is None or base == column or not self.made(column):
            return ""
        moved = {name: self.mean(column, name) - self.mean(base, name) for name in self.rewards}
        risen = [name for name, by in moved.items() if by > 0 and name not in self.watched]
        fallen = [name for name, by in moved.items() if by < 0 and name in self.watched]
        if not risen or not fallen:
            return ""
        return (
            f"{column}: {', '.join(f'{n} {moved[n]:+.2f}' for n in risen)} while the held-out "
            f"{', '.join(f'{n} {moved[n]:+.2f}' for n in fallen)}. One prompt is only a hint of reward hacking."
        )


def diversity(media: Sequence[Any]) -> float | None:
    """Mean distance of pictures of one size, or the share of pairs of texts that differ; None for fewer than two."""
    if len(media) < 2:
        return None
    if all(isinstance(each, str) for each in media):
        return differing_pairs(list(media))
    pictures = [still(each) for each in media]
    known: list[Image.Image] = [each for each in pictures if each is not None]
    return pairwise_distance(known) if len(known) == len(media) and len({each.size for each in known}) == 1 else None


def versions() -> str:
    """Of the libraries that decide what is made."""
    found = []
    for package in ("mmrl-suite", "torch", "diffusers", "transformers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # mmrl runs from a folder that was never installed
            continue
    return ", ".join(found)
