"""A run as one page: `report.html`, self-contained, without scripts or outside requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import yaml

from mmrl.atomic_io import replace_file
from mmrl.evaluation.report.cards import cards, change_cell
from mmrl.evaluation.report.page import charts_section, page
from mmrl.evaluation.report.run_charts import (
    by_source_charts,
    health_charts,
    kind_of,
    reward_charts,
    time_chart,
    time_table,
)
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.run_warnings import cautions, read_splits, shown_changes
from mmrl.evaluation.summary import (
    MALFORMED,
    NUMBERS,
    Change,
    RunSummary,
    malformed_text,
    summarise_run,
    verdict_text,
)
from mmrl.statistics.intervals import interval_text

FACTS = {  # what a reader asks first
    "Model": "policy.model",
    "Trains": "policy.train",
    "Algorithm": "algorithm.name",
    "Transition": "sampling.transition.name",
    "Steps": "sampling.steps",
    "Guidance": "sampling.guidance_scale",
    "Temperature": "sampling.temperature",
    "Longest answer": "sampling.max_new_tokens",
    "Prompts an iteration": "data.groups",
    "Trajectories a prompt": "data.group_size",
    "Learning rate": "optimizer.lr",
    "Seed": "seed",
}


def write_report(run: Path) -> Path:
    """Write the run's `report.html` and return its path. Unfinished runs get what is known so far.

    Raises:
        EvaluationError: the folder is no run, or one of its files is damaged.
    """
    record = read_run(run)
    summary = summarise_run(run) if record.comparable else None
    inner = read_splits(run)
    body = [
        _head(record),
        *(f'<div class="warning">{escape(text)}</div>' for text in cautions(record, summary, inner)),
        _table("Before and after", record, summary) if summary else "",
        cards("", record, summary.headline if summary else None),
    ]
    for kind, its, found in inner:
        body += [
            _table(f"Before and after, {kind.title}", record, found, kind.note) if found else "",
            cards(f", {kind.title}", its, found.headline if found else None),
        ]
    body += [
        charts_section("Rewards", reward_charts(record)),
        charts_section("By source", by_source_charts(record)),
        charts_section("Training", health_charts(record) + time_chart(record)),
        time_table(record),
        f"<details><summary>Configuration</summary><pre>{escape(_yaml(record.config))}</pre></details>",
    ]
    return replace_file(run / "report.html", page(record.name, "\n".join(part for part in body if part)))


def _head(record: RunRecord) -> str:
    done, planned = record.iterations
    state = f"{done} iterations"
    if planned is not None and done < planned:
        state = f"{done} of {planned} iterations"
        state = f"{state}: its KL budget was spent" if record.spent else f"unfinished: {state}"
    parts = [name if weight is None else f"{weight:g} × {name}" for name, weight in record.trained.items()]
    rewards = ", ".join([*parts, *(f"{name} ≥ {due:g}" for name, due in record.constrained.items())])
    facts = {label: record.setting(path) for label, path in FACTS.items()} | {"Rewards": rewards or None}
    if record.watched:
        facts["Held out"] = ", ".join(record.watched)
    facts |= _ends(record)
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(str(value))}</dd></div>"
        for label, value in facts.items()
        if value is not None
    )
    return f'<h1>{escape(record.name)}</h1><p class="soft">{escape(state)}</p><dl class="facts">{cells}</dl>'


def _ends(record: RunRecord) -> dict[str, str]:
    """What a curve hides by its scale."""
    gaps = [value for value in record.curve("train", "replay_gap").values if math.isfinite(value)]
    idle = [value for value in record.curve("train", "zero_variance_share").values if math.isfinite(value)]
    told = {"Largest replay gap": f"{max(gaps):.2g}"} if gaps else {}
    return told | ({"Groups without variance": f"{sum(idle) / len(idle):.0%}"} if idle else {})


def _table(title: str, record: RunRecord, summary: RunSummary, note: str = "") -> str:
    """All rewards on all prompts, what says most by source, and, folded up, all rewards by source."""
    malformed = any(any(change.malformed) for change in summary.changes.values())
    rows = _rows(record, summary.changes, malformed)
    if summary.tokens:
        before, after = summary.tokens
        rows.append(_plain_row("length in tokens", before, after, 1, after / before if before else math.nan))
    if summary.diversity:
        rows.append(_plain_row("diversity", *summary.diversity, 3, summary.diversity_ratio))
    parts = [_wide("reward", rows, malformed)]
    if summary.sources:
        parts.append(f'<h3>By source</h3><p class="soft">{escape(verdict_text([summary]))}</p>')
        lines = [_row(escape(source), change, malformed) for source, change in summary.sources.items()]
        parts.append(_wide("source", lines, malformed))
        every = "".join(
            f"<h3>{escape(source)}</h3>{_wide('reward', _rows(record, changes, malformed), malformed)}"
            for source, changes in summary.by_source.items()
        )
        parts.append(f"<details><summary>Every reward by source</summary>{every}</details>")
    note = f"{note} The same prompts and noise at step 0 and at step {summary.steps[1]}.".strip()
    return f'<section><h2>{escape(title)}</h2><p class="soft">{escape(note)}</p>{"".join(parts)}</section>'


def _wide(first: str, rows: Sequence[str], malformed: bool) -> str:
    heads = "".join(f"<th>{column}</th>" for column in (first, *NUMBERS, *([MALFORMED] if malformed else [])))
    return f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'


def _rows(record: RunRecord, changes: dict[str, Change], malformed: bool) -> list[str]:
    rows = []
    for name, change in shown_changes(record, changes).items():
        kind = kind_of(record, name)
        tag = f'<span class="tag">{kind}</span>' if kind else ""
        rows.append(_row(f"{escape(name)}{tag}", change, malformed))
    return rows


def _row(label: str, change: Change, malformed: bool) -> str:
    """`label` is HTML."""
    interval = change.difference
    last = f"<td>{malformed_text(change)}</td>" if malformed else ""
    return (
        f"<tr><td>{label}</td><td>{change.before:.3f}</td><td>{change.after:.3f}</td>"
        f"{change_cell(interval.mean, interval.verdict)}<td>{interval_text(interval)}</td>"
        f"<td>{interval.n}</td><td>{interval.dropped}</td>{last}</tr>"
    )


def _plain_row(label: str, before: float, after: float, digits: int, ratio: float) -> str:
    times = f"× {ratio:.2f}" if math.isfinite(ratio) else "&ndash;"
    return f"<tr><td>{label}</td><td>{before:.{digits}f}</td><td>{after:.{digits}f}</td><td>{times}</td></tr>"


def _yaml(config: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
