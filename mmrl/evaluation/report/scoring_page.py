"""Scores of a folder of pictures as one page: numbers, best and worst pictures by reward, and unscored ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from mmrl.errors import DataError
from mmrl.evaluation.report.page import (
    UNKNOWN,
    card_grid,
    facts_list,
    number_cell,
    page,
    picture,
    section,
    tag,
    wide_table,
)
from mmrl.evaluation.score_folder import ScoreRow, counts, kinds, known, open_picture, score_names

MOST_PICTURES = 12  # at either end
MOST_UNSCORED = 40  # lines
SIDE = 256  # pixels of a picture's longer side on the page
LONGEST = 600  # characters of a prompt on the page
STATUSES = ("ok", "invalid", "error", "timeout")


def write_page(
    rows: Sequence[ScoreRow], lower_is_better: Collection[str], facts: Mapping[str, str], path: Path
) -> None:
    """Write the page with `facts` at its top. For a reward in `lower_is_better`, the lowest values are the best."""
    names = score_names(rows)
    groups = len({row.pairing.group for row in rows})
    body = [
        "<h1>Scores</h1>" + facts_list({"Pictures": str(len(rows)), "Prompts": str(groups), **facts}),
        _table(rows, names),
        *(_ends(rows, name, name in lower_is_better) for name in names),
        _unscored(rows, names),
    ]
    text = page("Scores", "\n".join(part for part in body if part))
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files need not be UTF-8


def ranked(rows: Sequence[ScoreRow], name: str, lower_is_better: bool) -> tuple[list[ScoreRow], list[ScoreRow]]:
    """Return the best, best first, and the worst, worst first. No picture is in both; equal ones keep their order."""
    scored = [row for row in rows if math.isfinite(row.values.get(name, math.nan))]
    ordered = sorted(scored, key=lambda row: row.values[name] * (1 if lower_is_better else -1))
    best = ordered[: min(MOST_PICTURES, -(-len(ordered) // 2))]
    return best, ordered[len(best) :][::-1][:MOST_PICTURES]


def _table(rows: Sequence[ScoreRow], names: Sequence[str]) -> str:
    heads = ("score", "mean", "median", "lowest", "highest", *STATUSES, "why")
    note = "Pictures that could not be scored are in no mean; an invalid one counts as the worst."
    return section("All pictures", wide_table(heads, [_line(rows, name) for name in names]), note)


def _line(rows: Sequence[ScoreRow], name: str) -> str:
    values, counted = known(rows, name), counts(rows, name)
    numbers = (fmean(values), median(values), min(values), max(values)) if values else ()
    cells = "".join(f"<td>{number:.4g}</td>" for number in numbers) or UNKNOWN * 4
    cells += "".join(f"<td>{counted[status]}</td>" for status in STATUSES)
    reasons = ", ".join(f"{kind} {n}" for kind, n in kinds(rows, name).most_common())
    return f"<tr><td>{escape(name)}</td>{cells}<td>{escape(reasons)}</td></tr>"


def _ends(rows: Sequence[ScoreRow], name: str, lower_is_better: bool) -> str:
    best, worst = ranked(rows, name, lower_is_better)
    parts = [
        f"<h3>{title}</h3>{card_grid(_card(row, name) for row in end)}"
        for title, end in (("Best", best), ("Worst", worst))
        if end
    ]
    return section(name, "".join(parts), "Lower is better." if lower_is_better else "") if parts else ""


def _card(row: ScoreRow, name: str) -> str:
    prompt = row.pairing.sample.prompt
    short = prompt if len(prompt) <= LONGEST else f"{prompt[:LONGEST]} …"
    lines = "".join(
        f"<tr><td>{escape(each)}</td>{number_cell(value, '.4g')}</tr>"
        for each, value in sorted(row.values.items(), key=lambda entry: entry[0] != name)
    )
    invalid = tag("invalid") if row.status.get(name) == "invalid" else ""
    label = escape(row.pairing.picture.name)
    return (
        f'<figure class="card"><div class="pair" style="grid-template-columns: 1fr"><div>{label}{invalid}'
        f"{_thumbnail(row, short)}</div></div><blockquote>{escape(short)}</blockquote><table>{lines}</table></figure>"
    )


def _thumbnail(row: ScoreRow, alt: str) -> str:
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
        for row, name in failed[:MOST_UNSCORED]
    ]
    lines = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in cells]
    more = f'<p class="soft">And {len(failed) - MOST_UNSCORED} more: see scores.jsonl.</p>'
    table = wide_table(("picture", "score", "kind", "reason"), lines)
    return section("Not scored", table + (more if len(failed) > MOST_UNSCORED else ""))
