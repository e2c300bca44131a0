"""A grid as HTML: sticky labels, a figure per cell, and the settings to reproduce each."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from PIL import Image

from mmrl.demo.grid import Grid, GridCell
from mmrl.evaluation.image_grid import still
from mmrl.evaluation.report.page import page, picture, shortened

LONGEST = 1200  # characters of a text in a cell
UNKNOWN = "–"  # noqa: RUF001


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
    read = f'<p class="mm-read"><small>read as</small> {escape(shortened(cell.read, 300))}</p>' if cell.read else ""
    return f"<td>{figure}{read}{_rewards(grid, row, column, best)}{_provenance(cell)}</td>"


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
