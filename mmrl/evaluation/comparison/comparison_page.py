"""A result as one page that opens anywhere: numbers, and the samples that a subject won and lost most."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.atomic_io import replace_file
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.evaluation.comparison.result import Result, SubjectResult
from mmrl.evaluation.comparison.result_tables import (
    Cell,
    Table,
    result_markdown,
    result_tables,
    title_of,
    told_settings,
)
from mmrl.evaluation.comparison.samples import Measured
from mmrl.evaluation.comparison.store import Line, SubjectStore
from mmrl.evaluation.report.page import as_text, page, picture, shortened
from mmrl.rewards.core.reward_io import TOTAL

SHOWN = 8  # samples at either end
LONGEST = 600  # characters of a prompt or an answer
LEFT = ' style="text-align:left"'
FOLDED = ("By task", "By source", "By tag")

Shown = Callable[[int], Image.Image | None]
"""From the number of a sample to what was shown with its prompt."""


@dataclass(frozen=True)
class _Side:
    """A subject's answers to all samples."""

    name: str
    store: SubjectStore
    lines: Sequence[Line]
    measured: Measured


def write_pages(result: Result, folder: Path, shown: Shown | None = None) -> None:
    """Write result.md and result.html into the folder that holds the rows."""
    replace_file(folder / "result.md", result_markdown(result))
    replace_file(folder / "result.html", page(title_of(result), result_html(result, folder, shown)))


def result_html(result: Result, folder: Path, shown: Shown | None = None) -> str:
    """The body of result.html."""
    parts = [_head(result)]
    tables = result_tables(result)
    parts += [_section(table) for table in tables if table.title not in FOLDED]
    parts += [_changed(result, folder, name, shown or (lambda _: None)) for name in result.subjects]
    parts += [
        f"<details><summary>{escape(t.title)}</summary>{_table(t)}</details>" for t in tables if t.title in FOLDED
    ]
    kept = {"settings": result.settings, "provenance": result.provenance}
    text = json.dumps(kept, indent=1, ensure_ascii=False, default=str)
    parts.append(_folded("Settings and provenance", f"<pre>{escape(text)}</pre>"))
    return "\n".join(part for part in parts if part)


def _head(result: Result) -> str:
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in told_settings(result).items()
    )
    told = [*result.notes, *(f"{name} failed: {why}" for name, why in result.failed.items())]
    warning = f'<div class="warning">{"".join(f"<p>{escape(text)}</p>" for text in told)}</div>' if told else ""
    soft = '<p class="soft">The same samples, noise and settings for all.</p>'
    return f'<h1>{escape(title_of(result))}</h1>{soft}<dl class="facts">{cells}</dl>{warning}'


def _section(table: Table) -> str:
    return f"<section><h2>{escape(table.title)}</h2>{_table(table)}</section>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(table: Table) -> str:
    heads = "".join(f"<th{LEFT if n < table.names else ''}>{escape(head)}</th>" for n, head in enumerate(table.heads))
    rows = "".join(
        "<tr>" + "".join(_cell(cell, number < table.names) for number, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    return f'{note}<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'


def _cell(cell: Cell, is_name: bool) -> str:
    return f'<td class="{cell.verdict}"{LEFT if is_name else ""}>{escape(cell.text)}</td>'


def _changed(result: Result, folder: Path, name: str, shown: Shown) -> str:
    """The biggest wins and losses of a subject against its base."""
    subject = result.subjects[name]
    if subject.base is None or subject.base not in result.subjects:
        return ""
    config = MetricConfig.model_validate(result.headline.config)
    before, after = (_side(folder, each, result.subjects[each], config) for each in (subject.base, name))
    both = before.measured.scored & after.measured.scored
    moved = after.measured.sign * (after.measured.by_sample(both) - before.measured.by_sample(both))
    order = [int(n) for n in np.argsort(-moved, kind="stable") if math.isfinite(moved[n]) and moved[n] != 0]
    ends = [("Biggest wins", [n for n in order if moved[n] > 0][:SHOWN], 1)]
    ends.append(("Biggest losses", [n for n in reversed(order) if moved[n] < 0][:SHOWN], -1))
    names = {metric.label for metric in result.metrics}
    body = "".join(
        f'<h3>{title}</h3><div class="cards">'
        + "".join(_card(before, after, n, _draw(before, after, n, way), shown, names) for n in numbers)
        + "</div>"
        for title, numbers, way in ends
        if numbers
    )
    draw = "the draw of each that changed most, " if subject.draws > 1 else ""
    note = f"By {result.headline.label}, against {subject.base}: {draw}with the same noise."
    return f'<section><h2>{escape(name)}</h2><p class="soft">{escape(note)}</p>{body}</section>' if body else ""


def _side(folder: Path, name: str, subject: SubjectResult, config: MetricConfig) -> _Side:
    store = SubjectStore(folder, subject.file)
    lines = store.lines()
    return _Side(name, store, lines, Measured(config, store.answers(lines, subject.draws)))


def _draw(before: _Side, after: _Side, sample: int, way: int) -> int:
    """The draw that won, or lost, most."""
    draws = after.measured.answers.draws
    rows = [np.array([sample * draws + draw]) for draw in range(draws)]
    moved = [way * after.measured.sign * (after.measured.over(row) - before.measured.over(row)) for row in rows]
    return int(np.argmax([each if math.isfinite(each) else -math.inf for each in moved]))


def _card(before: _Side, after: _Side, sample: int, draw: int, shown: Shown, names: Collection[str]) -> str:
    """Prompt, what both made of it, and what every reward said. All texts are escaped: models and data wrote them."""
    row = sample * after.measured.answers.draws + draw
    asked = after.measured.answers.rows[row].sample
    lines = [side.lines[row] for side in (before, after)]
    prompt = shortened(asked.prompt or str(asked.messages[-1].get("content", "") if asked.messages else ""), LONGEST)
    made = [side.store.picture(sample, draw) for side in (before, after)]
    seen = shown(sample)
    parts = [picture(seen, "what was shown") if seen is not None else ""]
    if any(image is not None for image in made):
        labels = ("base", after.name.rpartition("@")[2] if "@" in after.name else "trained")
        pair = "".join(
            f"<div>{escape(label)}{picture(image, f'{label}: {prompt}') if image is not None else ''}</div>"
            for label, image in zip(labels, made, strict=True)
        )
        parts.append(f'<div class="pair">{pair}</div>')
    tags = f'<span class="tag">{escape(asked.source)}</span>' if asked.source != "default" else ""
    parts.append(f"<blockquote>{escape(prompt)}{tags}</blockquote>")
    if any(line.answer is not None for line in lines):
        told = [("right", as_text(asked.answer, LONGEST)), ("base", lines[0].answer), ("trained", lines[1].answer)]
        parts.append(f'<dl class="answers">{"".join(_answer(label, text) for label, text in told)}</dl>')
    parts.append(_scores(lines, names))
    return f'<figure class="card">{"".join(parts)}</figure>'


def _answer(label: str, text: str | None) -> str:
    if text is None:
        return ""
    return f"<div><dt>{label}</dt><dd>{escape(shortened(text, LONGEST)) or '(nothing)'}</dd></div>"


def _scores(lines: Sequence[Line], names: Collection[str]) -> str:
    rows = []
    for name in lines[1].scores:
        if name == TOTAL and name not in names:
            continue
        numbers = [line.scores.get(name, math.nan) for line in lines]
        if any(map(math.isfinite, numbers)):
            cells = "".join(f"<td>{n:.2f}</td>" if math.isfinite(n) else "<td>&ndash;</td>" for n in numbers)
            moved = numbers[1] - numbers[0]
            change = f"<td>{moved:+.2f}</td>" if math.isfinite(moved) else "<td>&ndash;</td>"
            rows.append(f"<tr><td>{escape(name)}</td>{cells}{change}</tr>")
    return f"<table>{''.join(rows)}</table>"
