"""Scores as one page: numbers, the best and the worst pictures of every reward, and why some have no score."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from mmrl.errors import DataError
from mmrl.evaluation.report.page import page, picture
from mmrl.evaluation.score_folder import ScoreRow, counts, kinds, known, open_picture, score_names

SHOWN = 12  # pictures at either end
UNSCORED_SHOWN = 40
SIDE = 256  # pixels of a picture's longer side on the page
LONGEST = 600  # characters of a prompt on the page
STATUSES = ("ok", "invalid", "error", "timeout")


def write_page(
    rows: Sequence[ScoreRow], lower_is_better: Collection[str], facts: Mapping[str, str], path: Path
) -> None:
    """Write the page. `facts` stand at its top; of a reward in `lower_is_better`, the lowest values are the best."""
    names = score_names(rows)
    body = [
        _head(rows, facts),
        _table(rows, names),
        *(_ends(rows, name, name in lower_is_better) for name in names),
        _unscored(rows, names),
    ]
    text = page("Scores", "\n".join(part for part in body if part))
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files need not be UTF-8


def ranked(rows: Sequence[ScoreRow], name: str, lower_is_better: bool) -> tuple[list[ScoreRow], list[ScoreRow]]:
    """The best, best first, and the worst, worst first; no picture is in both. What is alike keeps its order."""
    scored = [row for row in rows if math.isfinite(row.values.get(name, math.nan))]
    ordered = sorted(scored, key=lambda row: row.values[name] * (1 if lower_is_better else -1))
    best = ordered[: min(SHOWN, -(-len(ordered) // 2))]
    return best, ordered[len(best) :][::-1][:SHOWN]


def _head(rows: Sequence[ScoreRow], facts: Mapping[str, str]) -> str:
    groups = len({row.pairing.group for row in rows})
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in {"Pictures": str(len(rows)), "Prompts": str(groups), **facts}.items()
    )
    return f'<h1>Scores</h1><dl class="facts">{cells}</dl>'


def _table(rows: Sequence[ScoreRow], names: Sequence[str]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in ("score", "mean", "median", "lowest", "highest", *STATUSES, "why"))
    lines = "".join(_line(rows, name) for name in names)
    note = '<p class="soft">Pictures that could not be scored are in no mean; an invalid one counts as the worst.</p>'
    return (
        f'<section><h2>All pictures</h2>{note}<div class="wide"><table><tr>{heads}</tr>{lines}</table></div></section>'
    )


def _line(rows: Sequence[ScoreRow], name: str) -> str:
    values, counted = known(rows, name), counts(rows, name)
    numbers = (fmean(values), median(values), min(values), max(values)) if values else ()
    cells = "".join(f"<td>{number:.4g}</td>" for number in numbers) or "<td>&ndash;</td>" * 4
    cells += "".join(f"<td>{counted[status]}</td>" for status in STATUSES)
    why = ", ".join(f"{kind} {n}" for kind, n in kinds(rows, name).most_common())
    return f"<tr><td>{escape(name)}</td>{cells}<td>{escape(why)}</td></tr>"


def _ends(rows: Sequence[ScoreRow], name: str, lower_is_better: bool) -> str:
    best, worst = ranked(rows, name, lower_is_better)
    if not best:
        return ""
    note = '<p class="soft">Lower is better.</p>' if lower_is_better else ""
    parts = [
        f'<h3>{title}</h3><div class="cards">{"".join(_card(row, name) for row in part)}</div>'
        for title, part in (("Best", best), ("Worst", worst))
        if part
    ]
    return f"<section><h2>{escape(name)}</h2>{note}{''.join(parts)}</section>"


def _card(row: ScoreRow, name: str) -> str:
    prompt = row.pairing.sample.prompt
    short = prompt if len(prompt) <= LONGEST else f"{prompt[:LONGEST]} …"
    lines = "".join(
        f"<tr><td>{escape(each)}</td><td>{_number(value)}</td></tr>"
        for each, value in sorted(row.values.items(), key=lambda entry: entry[0] != name)
    )
    invalid = '<span class="tag">invalid</span>' if row.status.get(name) == "invalid" else ""
    where = escape(row.pairing.picture.name)
    return (
        f'<figure class="card"><div class="pair" style="grid-template-columns: 1fr"><div>{where}{invalid}'
        f"{_shown(row, short)}</div></div><blockquote>{escape(short)}</blockquote><table>{lines}</table></figure>"
    )


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "&ndash;"


def _shown(row: ScoreRow, alt: str) -> str:
    try:
        image = open_picture(row.pairing.picture)
    except DataError as err:
        return f"<p>{escape(str(err))}</p>"
    image.thumbnail((SIDE, SIDE))
    return picture(image, alt)


def _unscored(rows: Sequence[ScoreRow], names: Sequence[str]) -> str:
    failed = [(row, name) for row in rows for name in names if row.status.get(name) in ("error", "timeout")]
    if not failed:
        return ""
    cells = [
        (row.pairing.picture.name, name, row.failures.get(name, row.status[name]), row.detail.get(name, "")[:LONGEST])
        for row, name in failed[:UNSCORED_SHOWN]
    ]
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in cells)
    more = f'<p class="soft">And {len(failed) - UNSCORED_SHOWN} more: see scores.jsonl.</p>'
    heads = "<tr><th>picture</th><th>score</th><th>kind</th><th>reason</th></tr>"
    return (
        f'<section><h2>Not scored</h2><div class="wide"><table>{heads}{lines}</table></div>'
        f"{more if len(failed) > UNSCORED_SHOWN else ''}</section>"
    )
