"""The report of a run, `report.html`: one self-contained page without scripts or outside requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import yaml

from mmrl.atomic_io import replace_text
from mmrl.evaluation.report.cards import example_cards
from mmrl.evaluation.report.page import charts_section, facts_list, number_cell, page, section, wide_table
from mmrl.evaluation.report.run_charts import (
    by_source_charts,
    health_charts,
    reward_charts,
    time_chart,
    time_table,
)
from mmrl.evaluation.results import RewardChange
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.run_warnings import displayed_changes, read_splits, run_warnings
from mmrl.evaluation.summary import (
    MALFORMED,
    NUMBERS,
    RunSummary,
    any_malformed,
    malformed_text,
    summarise_run,
    verdict_text,
)
from mmrl.statistics.intervals import interval_text

FACTS = {  # the first settings that a reader looks for
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
    splits = read_splits(run)
    body = [
        _head(record),
        *(f'<div class="warning">{escape(text)}</div>' for text in run_warnings(record, summary, splits)),
        _table("Before and after", record, summary) if summary else "",
        example_cards("", record, summary.headline if summary else None),
    ]
    for split, its, found in splits:
        body += [
            _table(f"Before and after, {split.title}", record, found, split.note) if found else "",
            example_cards(f", {split.title}", its, found.headline if found else None),
        ]
    body += [
        charts_section("Rewards", reward_charts(record)),
        charts_section("By source", by_source_charts(record)),
        charts_section("Training", health_charts(record) + time_chart(record)),
        time_table(record),
        f"<details><summary>Configuration</summary><pre>{escape(_yaml(record.config))}</pre></details>",
    ]
    return replace_text(
        run / "report.html", page(record.name, "\n".join(part for part in body if part)), errors="backslashreplace"
    )


def _head(record: RunRecord) -> str:
    done, planned = record.iterations
    state = f"{done} iterations"
    if planned is not None and done < planned:
        state = f"{done} of {planned} iterations"
        state = f"{state}: its KL limit was exceeded" if record.kl_exceeded else f"unfinished: {state}"
    parts = [name if weight is None else f"{weight:g} × {name}" for name, weight in record.trained.items()]
    rewards = ", ".join([*parts, *(f"{name} ≥ {least:g}" for name, least in record.constrained.items())])
    facts = {label: record.setting(path) for label, path in FACTS.items()} | {"Rewards": rewards or None}
    if record.heldout:
        facts["Held out"] = ", ".join(record.heldout)
    facts |= _extremes(record)
    cells = facts_list({label: str(value) for label, value in facts.items() if value is not None})
    return f'<h1>{escape(record.name)}</h1><p class="soft">{escape(state)}</p>{cells}'


def _extremes(record: RunRecord) -> dict[str, str]:
    """Return numbers that the scale of a curve hides: the largest replay gap, the mean share of idle groups."""
    gaps = [value for value in record.curve("train", "replay_gap").values if math.isfinite(value)]
    idle = [value for value in record.curve("train", "zero_variance_share").values if math.isfinite(value)]
    found = {"Largest replay gap": f"{max(gaps):.2g}"} if gaps else {}
    return found | ({"Groups without variance": f"{sum(idle) / len(idle):.0%}"} if idle else {})


def _table(title: str, record: RunRecord, summary: RunSummary, note: str = "") -> str:
    """Return a section with all rewards on all prompts, the headline by source, and, folded, all rewards by source."""
    malformed = any_malformed(summary.changes.values())
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
    return section(title, "".join(parts), note)


def _wide(first: str, rows: Sequence[str], malformed: bool) -> str:
    return wide_table((first, *NUMBERS, *([MALFORMED] if malformed else [])), rows)


def _rows(record: RunRecord, changes: dict[str, RewardChange], malformed: bool) -> list[str]:
    rows = []
    for name, change in displayed_changes(record, changes).items():
        role = record.role(name)
        tag = f'<span class="tag">{role}</span>' if role else ""
        rows.append(_row(f"{escape(name)}{tag}", change, malformed))
    return rows


def _row(label: str, change: RewardChange, malformed: bool) -> str:
    """Return a table row; `label` is HTML."""
    interval = change.difference
    last = f"<td>{malformed_text(change)}</td>" if malformed else ""
    return (
        f"<tr><td>{label}</td><td>{change.before:.3f}</td><td>{change.after:.3f}</td>"
        f"{number_cell(interval.mean, '+.3f', interval.verdict)}<td>{interval_text(interval)}</td>"
        f"<td>{interval.n}</td><td>{interval.dropped}</td>{last}</tr>"
    )


def _plain_row(label: str, before: float, after: float, digits: int, ratio: float) -> str:
    times = f"× {ratio:.2f}" if math.isfinite(ratio) else "&ndash;"
    return f"<tr><td>{label}</td><td>{before:.{digits}f}</td><td>{after:.{digits}f}</td><td>{times}</td></tr>"


def _yaml(config: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
