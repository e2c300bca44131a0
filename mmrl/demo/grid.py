"""Answers of checkpoints to one prompt: rows are draws or guidance scales, columns are checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mmrl.demo.scores import AnswerScores
from mmrl.evaluation.image_grid import still
from mmrl.statistics.distances import answer_diversity, comparable

TOTAL = "total"


@dataclass(frozen=True)
class GridCell:
    """An answer, or the reason why there is none."""

    media: Any = None  # a picture, a video as a list of pictures, or a text; None: see `problem`
    scored: AnswerScores = field(default_factory=AnswerScores)
    provenance: Mapping[str, str] = field(default_factory=dict)
    read: str = ""  # of a text, the final answer as the reward parses it
    problem: str = ""


@dataclass
class Grid:
    """A grid of cells by (row, column); missing ones are still being generated."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]  # labels: seed 7 / 0, guidance 4
    prompt: str
    bases: Mapping[str, str]  # {column: its base}
    cells: dict[tuple[int, str], GridCell] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    heldout: tuple[str, ...] = ()  # rewards that no run trained on

    @property
    def rewards(self) -> list[str]:
        """The names of all rewards, in order of appearance; held-out ones last."""
        names = list(dict.fromkeys(name for cell in self.cells.values() for name in cell.scored.values))
        return sorted(names, key=lambda name: name in self.heldout)

    @property
    def headline(self) -> str:
        """The reward that decides which is best: the total, or the first trained one; empty without rewards."""
        return TOTAL if TOTAL in self.rewards else next(iter(self.rewards), "")

    @property
    def best(self) -> str | None:
        """The column with the highest mean headline reward; None without scores."""
        means = {column: self.mean(column, self.headline) for column in self.columns}
        known = {column: mean for column, mean in means.items() if math.isfinite(mean)}
        return max(known, key=lambda column: known[column]) if known else None

    def mean(self, column: str, reward: str) -> float:
        """Return the mean over the scored rows; NaN without any."""
        values = [self.value(row, column, reward) for row in range(len(self.rows))]
        known = [value for value in values if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan

    def value(self, row: int, column: str | None, reward: str) -> float:
        """Return a reward of one cell; NaN if unknown."""
        cell = self.cells.get((row, column or ""))
        return cell.scored.values.get(reward, math.nan) if cell else math.nan

    def answers(self, column: str) -> list[Any]:
        """Return the answers of a column."""
        found = [self.cells.get((row, column)) for row in range(len(self.rows))]
        return [cell.media for cell in found if cell is not None and cell.media is not None]

    def diversity(self, column: str) -> float | None:
        """Return the mean distance between a column's pictures (or share of differing texts); None for one row."""
        return diversity(self.answers(column))

    def distance(self, column: str) -> float | None:
        """Return the mean distance of a column's answers from its base's with the same noise; None without a base."""
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
        """Return a sentence if a trained reward rose from the base and a held-out one fell; empty otherwise."""
        base = self.bases.get(column)
        if base is None or base == column or not self.answers(column):
            return ""
        moved = {name: self.mean(column, name) - self.mean(base, name) for name in self.rewards}
        risen = [name for name, by in moved.items() if by > 0 and name not in self.heldout]
        fallen = [name for name, by in moved.items() if by < 0 and name in self.heldout]
        if not risen or not fallen:
            return ""
        return (
            f"{column}: {', '.join(f'{n} {moved[n]:+.2f}' for n in risen)} while the held-out "
            f"{', '.join(f'{n} {moved[n]:+.2f}' for n in fallen)}. One prompt is only a hint of reward hacking."
        )


def diversity(media: Sequence[Any]) -> float | None:
    """Return the diversity of texts, or of pictures of one size; None with fewer than two or mixed ones."""
    answers = [each if isinstance(each, str) else still(each) for each in media]
    return answer_diversity(answers) if len(answers) > 1 and comparable(answers) else None


def versions() -> str:
    """Return the versions of the libraries that determine the output."""
    found = []
    for package in ("mmrl-suite", "torch", "diffusers", "transformers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # mmrl runs from a source folder
            continue
    return ", ".join(found)
