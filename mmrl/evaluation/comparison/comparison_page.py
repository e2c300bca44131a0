"""result.md and result.html: a comparison as one self-contained page, with each subject's largest wins and losses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.atomic_io import replace_text
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.evaluation.comparison.estimates import MeasuredMetric
from mmrl.evaluation.comparison.result import Result, SubjectResult
from mmrl.evaluation.comparison.result_tables import (
    ResultCell,
    ResultTable,
    main_settings,
    result_markdown,
    result_tables,
    title_of,
)
from mmrl.evaluation.comparison.store import ComparisonRow, SubjectStore
from mmrl.evaluation.report.page import (
    answer_list,
    as_text,
    card_grid,
    facts_list,
    folded,
    number_cell,
    page,
    picture,
    section,
    shortened,
    tag,
    wide_table,
)
from mmrl.rewards.core.reward_io import TOTAL

EXAMPLES = 8  # samples at either end
LONGEST = 600  # characters of a prompt or an answer
LEFT = ' style="text-align:left"'
FOLDED = ("By task", "By source", "By tag")

PromptImages = Callable[[int], Image.Image | None]
"""A function from the number of a sample to the picture in its prompt."""


@dataclass(frozen=True)
class _Side:
    """A subject's answers to all samples."""

    name: str
    store: SubjectStore
    lines: Sequence[ComparisonRow]
    measured: MeasuredMetric


def write_pages(result: Result, folder: Path, prompt_images: PromptImages | None = None) -> None:
    """Write result.md and result.html into the folder of the comparison."""
    replace_text(folder / "result.md", result_markdown(result), errors="backslashreplace")
    replace_text(
        folder / "result.html",
        page(title_of(result), result_html(result, folder, prompt_images)),
        errors="backslashreplace",
    )


def result_html(result: Result, folder: Path, prompt_images: PromptImages | None = None) -> str:
    """Return the body of result.html."""
    parts = [_head(result)]
    tables = result_tables(result)
    parts += [section(table.title, _table(table)) for table in tables if table.title not in FOLDED]
    parts += [_examples(result, folder, name, prompt_images or (lambda _: None)) for name in result.subjects]
    parts += [folded(table.title, _table(table)) for table in tables if table.title in FOLDED]
    origin = {"settings": result.settings, "provenance": result.provenance}
    text = json.dumps(origin, indent=1, ensure_ascii=False, default=str)
    parts.append(folded("Settings and provenance", f"<pre>{escape(text)}</pre>"))
    return "\n".join(part for part in parts if part)


def _head(result: Result) -> str:
    texts = [*result.notes, *(f"{name} failed: {error}" for name, error in result.failed.items())]
    warning = f'<div class="warning">{"".join(f"<p>{escape(text)}</p>" for text in texts)}</div>' if texts else ""
    soft = '<p class="soft">The same samples, noise and settings for all.</p>'
    return f"<h1>{escape(title_of(result))}</h1>{soft}{facts_list(main_settings(result))}{warning}"


def _table(table: ResultTable) -> str:
    heads = "".join(f"<th{LEFT if n < table.names else ''}>{escape(head)}</th>" for n, head in enumerate(table.heads))
    rows = [
        "<tr>" + "".join(_cell(cell, number < table.names) for number, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    ]
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    return note + wide_table(heads, rows)


def _cell(cell: ResultCell, is_name: bool) -> str:
    return f'<td class="{cell.verdict}"{LEFT if is_name else ""}>{escape(cell.text)}</td>'


def _examples(result: Result, folder: Path, name: str, prompt_images: PromptImages) -> str:
    """Return the section with the largest wins and losses of a subject against its base."""
    subject = result.subjects[name]
    if subject.base is None or subject.base not in result.subjects:
        return ""
    config = MetricConfig.model_validate(result.headline.config)
    before, after = (_side(folder, each, result.subjects[each], config) for each in (subject.base, name))
    both = before.measured.scored & after.measured.scored
    change = after.measured.sign * (after.measured.by_sample(both) - before.measured.by_sample(both))
    order = [int(n) for n in np.argsort(-change, kind="stable") if math.isfinite(change[n]) and change[n] != 0]
    ends = [("Biggest wins", [n for n in order if change[n] > 0][:EXAMPLES], 1)]
    ends.append(("Biggest losses", [n for n in reversed(order) if change[n] < 0][:EXAMPLES], -1))
    names = {metric.label for metric in result.metrics}
    body = "".join(
        f"<h3>{title}</h3>"
        + card_grid(_card(before, after, n, _draw(before, after, n, way), prompt_images, names) for n in numbers)
        for title, numbers, way in ends
        if numbers
    )
    draw = "the draw of each that changed most, " if subject.draws > 1 else ""
    note = f"By {result.headline.label}, against {subject.base}: {draw}with the same noise."
    return section(name, body, note) if body else ""


def _side(folder: Path, name: str, subject: SubjectResult, config: MetricConfig) -> _Side:
    store = SubjectStore(folder, subject.file)
    lines = store.lines()
    return _Side(name, store, lines, MeasuredMetric(config, store.answers(lines, subject.draws)))


def _draw(before: _Side, after: _Side, sample: int, way: int) -> int:
    """Return the draw with the largest gain (`way` 1) or loss (-1)."""
    draws = after.measured.answers.draws
    rows = [np.array([sample * draws + draw]) for draw in range(draws)]
    changes = [way * after.measured.sign * (after.measured.over(row) - before.measured.over(row)) for row in rows]
    return int(np.argmax([each if math.isfinite(each) else -math.inf for each in changes]))


def _card(
    before: _Side, after: _Side, number: int, draw: int, prompt_images: PromptImages, names: Collection[str]
) -> str:
    """Return the prompt, both answers and all rewards. Texts are escaped: a model or a data set wrote them."""
    row = number * after.measured.answers.draws + draw
    sample = after.measured.answers.rows[row].sample
    lines = [side.lines[row] for side in (before, after)]
    prompt = shortened(sample.prompt or str(sample.messages[-1].get("content", "") if sample.messages else ""), LONGEST)
    images = [side.store.picture(number, draw) for side in (before, after)]
    context = prompt_images(number)
    parts = [picture(context, "picture in the prompt") if context is not None else ""]
    if any(image is not None for image in images):
        labels = ("base", after.name.rpartition("@")[2] if "@" in after.name else "trained")
        pair = "".join(
            f"<div>{escape(label)}{picture(image, f'{label}: {prompt}') if image is not None else ''}</div>"
            for label, image in zip(labels, images, strict=True)
        )
        parts.append(f'<div class="pair">{pair}</div>')
    tags = tag(sample.source) if sample.source != "default" else ""
    parts.append(f"<blockquote>{escape(prompt)}{tags}</blockquote>")
    if any(line.answer is not None for line in lines):
        texts = [("right", as_text(sample.answer, LONGEST)), ("base", lines[0].answer), ("trained", lines[1].answer)]
        parts.append(answer_list(texts, LONGEST))
    parts.append(_scores(lines, names))
    return f'<figure class="card">{"".join(parts)}</figure>'


def _scores(lines: Sequence[ComparisonRow], names: Collection[str]) -> str:
    rows = []
    for name in lines[1].scores:
        if name == TOTAL and name not in names:
            continue
        numbers = [line.scores.get(name, math.nan) for line in lines]
        if any(map(math.isfinite, numbers)):
            cells = "".join(number_cell(number, ".2f") for number in numbers)
            rows.append(f"<tr><td>{escape(name)}</td>{cells}{number_cell(numbers[1] - numbers[0], '+.2f')}</tr>")
    return f"<table>{''.join(rows)}</table>"
