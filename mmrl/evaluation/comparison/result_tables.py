"""Tables of a result, or of the difference of two: plain texts that are drawn in a terminal or written as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from mmrl.evaluation.comparison.estimates import TIE, Estimate
from mmrl.evaluation.comparison.regression import Diff
from mmrl.evaluation.comparison.result import Against, Result, SubjectResult
from mmrl.evaluation.report.page import one_line
from mmrl.statistics.intervals import interval_text

COLOURS = {"up": "green", "better": "green", "down": "red", "worse": "red", "regression": "bold red", "unsure": ""}
NOT_KNOWN = "-"
LONGEST = 80  # characters of a name in a table


@dataclass(frozen=True)
class ResultCell:
    """A text and its verdict: `up`, `down`, `unsure` or nothing."""

    text: str
    verdict: str = ""


@dataclass(frozen=True)
class ResultTable:
    """A table of rows of cells under heads; the first `names` columns are names, the others numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[ResultCell, ...], ...]
    names: int = 1
    note: str = ""


def result_tables(result: Result) -> list[ResultTable]:
    """Return all tables of a result: numbers, differences to base and best, distances, groups, unscored rows."""
    against_base = _against(result, "base", lambda subject: subject.against_base)
    against_best = _against(result, "the best", lambda subject: subject.against_best)
    tables = [_numbers(result), against_base, against_best, _distances(result)]
    tables += [_groups(result, by) for by in dict.fromkeys(by for s in result.subjects.values() for by in s.groups)]
    return [table for table in [*tables, _unscored(result)] if table.rows]


def diff_table(diff: Diff) -> ResultTable:
    """Return a table with every number of both results, its change and its verdict."""
    rows = [
        _row(
            *map(_name, (change.subject, change.label)),
            *map(_number, (change.before, change.after)),
            ResultCell(_signed(change.difference), change.verdict),
            interval_text(change),
            str(change.samples) if change.samples else "not paired",
            ResultCell(change.verdict, change.verdict),
        )
        for change in diff.changes
    ]
    heads = ("subject", "metric", "first", "second", "second - first", "95 % interval", "samples", "verdict")
    return ResultTable(f"{diff.first} and {diff.second}", heads, tuple(rows), 2)


def as_rich(table: ResultTable, folder: str = "") -> RenderableType:
    """Return the table for a terminal. Names that begin with `folder` are printed without it."""
    drawn = RichTable(title=Text(table.title), title_justify="left", caption=table.note or None, caption_justify="left")
    for number, head in enumerate(table.heads):
        drawn.add_column(head, justify="left" if number < table.names else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell.text.removeprefix(folder), COLOURS.get(cell.verdict, "")) for cell in row))
    return drawn


def shared_folder(names: Sequence[str]) -> str:
    """Return the folder that all names begin with, such as `runs/quickstart/`; empty if there is none.

    >>> shared_folder(["runs/a/seed-0@base", "runs/a/seed-0", "runs/a/seed-1"])
    'runs/a/'
    """
    shared = []
    for parts in zip(*(name.split("/")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(f"{parts[0]}/")
    return "".join(shared)


def as_markdown(table: ResultTable) -> str:
    """Return the table as Markdown."""
    dashes = ["---" if number < table.names else "---:" for number in range(len(table.heads))]
    lines = [table.heads, dashes, *([_marked(cell) for cell in row] for row in table.rows)]
    note = f"\n{table.note}\n" if table.note else ""
    return f"## {table.title}\n{note}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def result_markdown(result: Result) -> str:
    """Return the text of result.md."""
    settings = "".join(f"- {key}: {value}\n" for key, value in main_settings(result).items())
    notes = "".join(f"- {note}\n" for note in result.notes)
    failed = "".join(f"- **{_escaped(name)} failed**: {_escaped(error)}\n" for name, error in result.failed.items())
    parts = [f"# {_escaped(title_of(result))}\n", settings, notes + failed]
    return "\n".join([part for part in parts if part] + [as_markdown(table) for table in result_tables(result)])


def title_of(result: Result) -> str:
    """Return the title of the protocol or the data."""
    return str(result.settings.get("title", "Comparison"))


def main_settings(result: Result) -> dict[str, str]:
    """Return the settings that a reader looks for first, and version and date, as texts."""
    wanted = ("data", "samples", "draws", "seed", "batch", "sampling")
    found = {key: _setting_text(result.settings[key]) for key in wanted if key in result.settings}
    return found | {"mmrl": str(result.provenance.get("mmrl", "")), "taken": str(result.provenance.get("at", ""))}


def _setting_text(value: object) -> str:
    if isinstance(value, Mapping):
        plain = {key: each for key, each in value.items() if each is not None and not isinstance(each, Mapping)}
        return ", ".join(f"{key} {each}" for key, each in plain.items() if key != "kind")
    return str(value)


def _numbers(result: Result) -> ResultTable:
    heads = ("subject", *(f"{m.label}{' ↓' if m.direction == 'lower' else ''}" for m in result.metrics))
    rows = [
        _row(_name(name), *(estimate_text(subject.numbers.get(m.label)) for m in result.metrics))
        for name, subject in result.subjects.items()
    ]
    note = "With 95 % intervals by the bootstrap over samples. What could not be scored is in no number."
    if any(metric.direction == "lower" for metric in result.metrics):
        note += " ↓: less is better."
    return ResultTable("Numbers", heads, tuple(rows), note=note)


def _against(result: Result, title: str, of: Callable[[SubjectResult], Against | None]) -> ResultTable:
    rows = [
        _row(
            *map(_name, (name, against.name, label)),
            ResultCell(_signed(each.value), each.verdict),
            interval_text(each),
            f"{each.wins} / {each.ties} / {each.losses}",
            *map(str, (each.samples, each.dropped)),
        )
        for name, subject in result.subjects.items()
        if (against := of(subject)) is not None
        for label, each in against.numbers.items()
    ]
    heads = ("subject", "against", "metric", "difference", "95 % interval", "win / tie / loss", "samples", "dropped")
    note = f"Sample by sample, with the same noise. A tie: no further apart than {TIE:g}."
    if title == "the best":
        note += " The best is chosen on these samples, which flatters it."
    return ResultTable(f"Against {title}", heads, tuple(rows), 3, note)


def _distances(result: Result) -> ResultTable:
    subjects = result.subjects
    distances = {
        "diversity": [subject.diversity for subject in subjects.values()],
        "drift from base": [subject.drift for subject in subjects.values()],
    }
    columns = {head: [estimate_text(each) for each in column] for head, column in distances.items() if any(column)}
    note = f"Diversity among the answers to one sample; drift at the same seed. Distance: {result.distance}."
    note = note if columns else ""
    if any(subject.tokens is not None for subject in subjects.values()):
        lengths = [subject.tokens for subject in subjects.values()]
        columns["tokens"] = [f"{length:.1f}" if length is not None else NOT_KNOWN for length in lengths]
    rows = [
        _row(_name(name), _number(subject.numbers[result.headline.label].value), *(c[n] for c in columns.values()))
        for n, (name, subject) in enumerate(subjects.items())
    ]
    heads = ("subject", result.headline.label, *columns)
    return ResultTable("Diversity and drift", heads, tuple(rows) if columns else (), note=note)


def _groups(result: Result, by: str) -> ResultTable:
    """Return the numbers by group, each beside its difference to the base."""
    rows: list[tuple[ResultCell, ...]] = []
    for group in dict.fromkeys(g for s in result.subjects.values() for g in s.groups.get(by, {})):
        for name, subject in result.subjects.items():
            if (found := subject.groups.get(by, {}).get(group)) is None:
                continue
            for label, number in found.numbers.items():
                change = found.difference.get(label)
                difference = ResultCell(_signed(change.value), change.verdict) if change else NOT_KNOWN
                interval = interval_text(change) if change else NOT_KNOWN
                names = map(_name, (group, label, name))
                rows.append(_row(*names, _number(number.value), difference, interval, str(number.samples)))
    heads = (by, "metric", "subject", "value", "difference to base", "95 % interval", "samples")
    return ResultTable(f"By {by}", heads, tuple(rows), 3)


def _unscored(result: Result) -> ResultTable:
    """Return the reasons for unscored rows, and for invalid answers, which count as the worst."""
    rows = [
        _row(*map(_name, (name, value, reason)), str(count))
        for name, subject in result.subjects.items()
        for counted in (subject.unscored, subject.invalid)
        for value, reasons in counted.items()
        for reason, count in reasons.items()
    ]
    note = "Errors and timeouts are in no number; invalid answers count as the worst. The most frequent reasons."
    return ResultTable("Could not be scored", ("subject", "reward", "reason", "rows"), tuple(rows), 3, note)


def estimate_text(estimate: Estimate | None) -> str:
    """Return `0.512 [0.480, 0.544]`, and the number of unscored rows if there are any."""
    if estimate is None:
        return NOT_KNOWN
    ends = f" [{estimate.low:.3f}, {estimate.high:.3f}]" if math.isfinite(estimate.low) else ""
    lost = f" ({estimate.unscored} unscored)" if estimate.unscored else ""
    return f"{_number(estimate.value)}{ends}{lost}"


def _row(*cells: str | ResultCell) -> tuple[ResultCell, ...]:
    return tuple(ResultCell(cell) if isinstance(cell, str) else cell for cell in cells)


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NOT_KNOWN


def _signed(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else NOT_KNOWN


def _name(text: str) -> str:
    return one_line(text, LONGEST)


def _marked(cell: ResultCell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.verdict in ("up", "down", "regression") else text


def _escaped(text: str) -> str:
    """Return the text with Markdown and HTML escaped: names and answers are not trusted."""
    for mark in "\\|`*_[]<>":
        text = text.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return text.replace("\n", " ")
