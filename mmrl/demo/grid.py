"""A grid of answers to one prompt, and its HTML: rows are draws or guidance scales, columns are checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from PIL import Image

from mmrl.demo.scores import AnswerScores
from mmrl.evaluation.image_grid import still
from mmrl.evaluation.report.page import page, picture, shortened
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.statistics.distances import answer_diversity, comparable
from mmrl.workflows.compare.comparison import library_versions

LONGEST = 1200  # characters of a text in a cell
UNKNOWN = "–"  # noqa: RUF001


@dataclass(frozen=True)
class GridCell:
    """An answer, or the reason why there is none."""

    media: Any = None  # a picture, a video as a list of pictures, or a text; None: see `problem`
    scored: AnswerScores = field(default_factory=AnswerScores)
    provenance: Mapping[str, str] = field(default_factory=dict)
    read: str = ""  # of a text, the final answer as the reward parses it
    written: str = ""  # of a picture, the text that the policy wrote for the painter
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
    found = library_versions(("mmrl-suite", "torch", "diffusers", "transformers"))
    return ", ".join(f"{name} {version}" for name, version in found.items())


def grid_html(grid: Grid, doing: str = "") -> str:
    """Return the whole grid; `doing` names what is being generated."""
    best = grid.best
    heads = "".join(_head(grid, column, best) for column in grid.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(_cell(grid, row, column, best) for column in grid.columns)
        + "</tr>"
        for row, label in enumerate(grid.rows)
    )
    busy = f'<p class="mm-doing" role="status">Making {escape(doing)} …</p>' if doing else ""
    return (
        f'{busy}<p class="mm-prompt">{escape(shortened(grid.prompt, LONGEST))}</p>{_warnings(grid)}'
        f'<div class="mm-scroll" tabindex="0"><table class="mm-grid"><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def export_page(grid: Grid, around: str, css: str) -> str:
    """Return a page with the grid that opens offline and runs no script. `around` is HTML about the runs."""
    body = f"<style>{css}</style><h1>Checkpoints side by side</h1>{grid_html(grid)}{around}"
    return page(f"Checkpoints side by side: {shortened(grid.prompt, 60)}", body)


def _warnings(grid: Grid) -> str:
    hints = [text for text in map(grid.hint, grid.columns) if text]
    return "".join(f'<p class="mm-warn">{escape(text)}</p>' for text in [*hints, *grid.notes])


def _head(grid: Grid, column: str, best: str | None) -> str:
    facts = []
    if math.isfinite(mean := grid.mean(column, grid.headline)):
        facts.append(f"{escape(grid.headline)} {mean:.3f}")
    if (spread := grid.diversity(column)) is not None:
        facts.append(f'<span title="mean distance between the rows of this column">diversity {spread:.3f}</span>')
    if (apart := grid.distance(column)) is not None:
        facts.append(f'<span title="mean distance from the base with the same noise">drift {apart:.3f}</span>')
    if (nats := _nats(grid, column)) is not None:
        facts.append(f'<span title="of the sampled tokens, from the base">KL {escape(nats)} nats a token</span>')
    star = '<span class="mm-best" title="highest mean here"> ★ best</span>' if column == best else ""
    return f'<th scope="col"><b>{escape(column)}</b>{star}<small>{"<br>".join(facts)}</small></th>'


def _nats(grid: Grid, column: str) -> str | None:
    cell = grid.cells.get((0, column))
    return cell.provenance.get("nats a token from the base") if cell and grid.bases.get(column) != column else None


def _cell(grid: Grid, row: int, column: str, best: str | None) -> str:
    cell = grid.cells.get((row, column))
    if cell is None:
        return '<td class="mm-wait">waiting</td>'
    if cell.problem:
        return f'<td class="mm-broken" role="alert">{escape(cell.problem)}</td>'
    title = f"{column}, {grid.rows[row]}"
    figure = f'<figure data-cell="{escape(title)}">{media_html(cell.media, title)}</figure>'
    read, written = _note("read as", cell.read), _note("drawn from", cell.written)
    return f"<td>{figure}{read}{written}{_rewards(grid, row, column, best)}{_provenance(cell)}</td>"


def _note(label: str, text: str) -> str:
    return f'<p class="mm-read"><small>{label}</small> {escape(shortened(text, 300))}</p>' if text else ""


def media_html(media: Any, title: str) -> str:
    """Return a picture that can be enlarged, the middle frame of a video, or a text."""
    if isinstance(media, str):
        return f'<div class="mm-text">{escape(shortened(media, LONGEST)) or "(nothing)"}</div>'
    image = still(media)
    if image is None:
        return "(nothing)"
    kind = "" if isinstance(media, Image.Image) else f"<small>frame {len(media) // 2 + 1} of {len(media)}</small>"
    return f'<button type="button" class="mm-zoom" aria-label="Enlarge">{picture(image, title)}</button>{kind}'


def _rewards(grid: Grid, row: int, column: str, best: str | None) -> str:
    base = grid.bases.get(column)
    lines = []
    for name in grid.rewards:
        value = grid.value(row, column, name)
        reason = grid.cells[row, column].scored.reasons.get(name, "")
        tag = ' <i title="no run trained on it">held out</i>' if name in grid.heldout else ""
        number = f"{value:.3f}" if math.isfinite(value) else UNKNOWN
        mark = f' title="{escape(reason)}"' if reason else ""
        lines.append(
            f"<tr><td>{escape(name)}{tag}</td><td{mark}>{number}{'*' if reason else ''}</td>"
            f"{_delta(value, grid.value(row, base, name), base == column)}"
            f"{_delta(value, grid.value(row, best, name), best == column)}</tr>"
        )
    if not lines:
        return ""
    heads = (
        '<tr><th></th><th></th><th title="less the base">Δ base</th><th title="less the best column">Δ best</th></tr>'
    )
    return f'<table class="mm-rewards">{heads}{"".join(lines)}</table>'


def _delta(value: float, other: float, itself: bool) -> str:
    moved = value - other
    if itself or not math.isfinite(moved):
        return f"<td>{UNKNOWN}</td>"
    sign = "up" if moved >= 0.0005 else "down" if moved <= -0.0005 else "unsure"  # as it is rounded
    return f'<td class="{sign}">{moved:+.3f}</td>'


def _provenance(cell: GridCell) -> str:
    lines = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in cell.provenance.items())
    return f'<details class="mm-how"><summary>how it was made</summary><dl>{lines}</dl></details>'
