"""A result, or the difference of two, as tables of plain texts: drawn in a terminal, and written as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from mmrl.evaluation.comparison.estimates import TIE, Difference, Estimate
from mmrl.evaluation.comparison.regression import Diff
from mmrl.evaluation.comparison.result import Against, Result, SubjectResult
from mmrl.evaluation.report.page import one_line

COLOURS = {"up": "green", "better": "green", "down": "red", "worse": "red", "regression": "bold red", "unsure": ""}
NOT_KNOWN = "-"
LONGEST = 80  # characters of a name in a table


@dataclass(frozen=True)
class Cell:
    """A text, and what it means: `up`, `down`, `unsure` or nothing."""

    text: str
    verdict: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads; the first `names` columns are names, the others numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int = 1
    note: str = ""


def result_tables(result: Result) -> list[Table]:
    """All that a result holds: numbers, differences to base and best, distances, groups, what could not be scored."""
    versus = [("base", lambda s: s.against_base), ("the best", lambda s: s.against_best)]
    tables = [_numbers(result), *(_against(result, title, of) for title, of in versus), _distances(result)]
    tables += [_groups(result, by) for by in dict.fromkeys(by for s in result.subjects.values() for by in s.groups)]
    return [table for table in [*tables, _unscored(result)] if table.rows]


def diff_table(diff: Diff) -> Table:
    """Every number of both, and what became of it."""
    rows = tuple(
        (
            Cell(_name(change.subject)),
            Cell(_name(change.label)),
            Cell(_number(change.before)),
            Cell(_number(change.after)),
            Cell(_signed(change.difference), change.verdict),
            Cell(_between(change.low, change.high)),
            Cell(str(change.samples) if change.samples else "not paired"),
            Cell(change.verdict, change.verdict),
        )
        for change in diff.changes
    )
    heads = ("subject", "metric", "first", "second", "second - first", "95 % interval", "samples", "verdict")
    return Table(f"{diff.first} and {diff.second}", heads, rows, 2)


def as_rich(table: Table, folder: str = "") -> RenderableType:
    """For a terminal. Names that begin with `folder` stand without it."""
    drawn = RichTable(title=Text(table.title), title_justify="left", caption=table.note or None, caption_justify="left")
    for number, head in enumerate(table.heads):
        drawn.add_column(head, justify="left" if number < table.names else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell.text.removeprefix(folder), COLOURS.get(cell.verdict, "")) for cell in row))
    return drawn


def shared_folder(names: Sequence[str]) -> str:
    """The folder that all names begin with, such as `runs/quickstart/`; empty where there is none.

    >>> shared_folder(["runs/a/seed-0@base", "runs/a/seed-0", "runs/a/seed-1"])
    'runs/a/'
    """
    shared = []
    for parts in zip(*(name.split("/")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(f"{parts[0]}/")
    return "".join(shared)


def as_markdown(table: Table) -> str:
    """For a file that people read, and others draw."""
    dashes = ["---" if number < table.names else "---:" for number in range(len(table.heads))]
    lines = [table.heads, dashes, *([_marked(cell) for cell in row] for row in table.rows)]
    note = f"\n{table.note}\n" if table.note else ""
    return f"## {table.title}\n{note}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def result_markdown(result: Result) -> str:
    """result.md."""
    settings = "".join(f"- {key}: {value}\n" for key, value in told_settings(result).items())
    notes = "".join(f"- {note}\n" for note in result.notes)
    failed = "".join(f"- **{_escaped(name)} failed**: {_escaped(why)}\n" for name, why in result.failed.items())
    parts = [f"# {_escaped(title_of(result))}\n", settings, notes + failed]
    return "\n".join([part for part in parts if part] + [as_markdown(table) for table in result_tables(result)])


def title_of(result: Result) -> str:
    """What was compared on."""
    return str(result.settings.get("title", "Comparison"))


def told_settings(result: Result) -> dict[str, str]:
    """The settings that a reader looks for first."""
    wanted = ("data", "samples", "draws", "seed", "batch", "sampling")
    told = {key: result.settings[key] for key in wanted if key in result.settings}
    told = {key: _told(value) for key, value in told.items()}
    return told | {"mmrl": str(result.provenance.get("mmrl", "")), "taken": str(result.provenance.get("at", ""))}


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        plain = {key: each for key, each in value.items() if each is not None and not isinstance(each, Mapping)}
        return ", ".join(f"{key} {each}" for key, each in plain.items() if key != "kind")
    return str(value)


def _numbers(result: Result) -> Table:
    heads = ("subject", *(f"{m.label}{' ↓' if m.direction == 'lower' else ''}" for m in result.metrics))
    rows = tuple(
        (Cell(_name(name)), *(Cell(estimate_text(subject.numbers.get(m.label))) for m in result.metrics))
        for name, subject in result.subjects.items()
    )
    note = "With 95 % intervals by the bootstrap over samples. What could not be scored is in no number."
    if any(metric.direction == "lower" for metric in result.metrics):
        note += " ↓: less is better."
    return Table("Numbers", heads, rows, note=note)


def _against(result: Result, title: str, of: object) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, subject in result.subjects.items():
        against: Against | None = of(subject)  # type: ignore[operator]
        if against is not None:
            rows += [_difference_row(name, against.name, label, each) for label, each in against.numbers.items()]
    heads = ("subject", "against", "metric", "difference", "95 % interval", "win / tie / loss", "samples", "dropped")
    note = f"Sample by sample, with the same noise. A tie: no further apart than {TIE:g}."
    if title == "the best":
        note += " The best is chosen by these very samples, which flatters it."
    return Table(f"Against {title}", heads, tuple(rows), 3, note)


def _difference_row(name: str, other: str, label: str, each: Difference) -> tuple[Cell, ...]:
    return (
        Cell(_name(name)),
        Cell(_name(other)),
        Cell(_name(label)),
        Cell(_signed(each.value), each.verdict),
        Cell(_between(each.low, each.high)),
        Cell(f"{each.wins} / {each.ties} / {each.losses}"),
        Cell(str(each.samples)),
        Cell(str(each.dropped)),
    )


def _distances(result: Result) -> Table:
    subjects = result.subjects.items()
    told = [("diversity", [s.diversity for _, s in subjects]), ("drift from base", [s.drift for _, s in subjects])]
    told = [(head, column) for head, column in told if any(column)]
    lengths = any(subject.tokens is not None for _, subject in subjects)
    rows = [
        (
            Cell(_name(name)),
            Cell(_number(subject.numbers[result.headline.label].value)),
            *(Cell(estimate_text(column[number])) for _, column in told),
            *([Cell(f"{subject.tokens:.1f}" if subject.tokens is not None else NOT_KNOWN)] if lengths else []),
        )
        for number, (name, subject) in enumerate(subjects)
    ]
    heads = ("subject", result.headline.label, *(head for head, _ in told), *(["tokens"] if lengths else []))
    note = f"Diversity among the answers to one sample; drift at the same seed. Distance: {result.distance}."
    return Table("Diversity and drift", heads, tuple(rows) if told or lengths else (), note=note if told else "")


def _groups(result: Result, by: str) -> Table:
    """Numbers by group, each beside its difference to the base."""
    rows: list[tuple[Cell, ...]] = []
    for group in dict.fromkeys(g for s in result.subjects.values() for g in s.groups.get(by, {})):
        for name, subject in result.subjects.items():
            rows += _group_rows(subject, by, group, name)
    heads = (by, "metric", "subject", "value", "difference to base", "95 % interval", "samples")
    return Table(f"By {by}", heads, tuple(rows), 3)


def _group_rows(subject: SubjectResult, by: str, group: str, name: str) -> list[tuple[Cell, ...]]:
    found = subject.groups.get(by, {}).get(group)
    if found is None:
        return []
    rows = []
    for label, number in found.numbers.items():
        moved = found.difference.get(label)
        cells = (_signed(moved.value), _between(moved.low, moved.high)) if moved else (NOT_KNOWN, NOT_KNOWN)
        rows.append(
            (
                *(Cell(_name(text)) for text in (group, label, name)),
                Cell(_number(number.value)),
                Cell(cells[0], moved.verdict if moved else ""),
                Cell(cells[1]),
                Cell(str(number.samples)),
            )
        )
    return rows


def _unscored(result: Result) -> Table:
    """Rows that are in no number, and answers that could not be read and count as the worst."""
    rows = [
        (Cell(_name(name)), Cell(_name(value)), Cell(one_line(reason, LONGEST)), Cell(str(count)))
        for name, subject in result.subjects.items()
        for counted in (subject.unscored, subject.invalid)
        for value, reasons in counted.items()
        for reason, count in reasons.items()
    ]
    note = "Errors and timeouts are in no number; invalid answers count as the worst. The most frequent reasons."
    return Table("Could not be scored", ("subject", "reward", "reason", "rows"), tuple(rows), 3, note)


def estimate_text(given: Estimate | None) -> str:
    """`0.512 [0.480, 0.544]`, and how many rows could not be scored."""
    if given is None:
        return NOT_KNOWN
    ends = f" [{given.low:.3f}, {given.high:.3f}]" if math.isfinite(given.low) else ""
    lost = f" ({given.unscored} unscored)" if given.unscored else ""
    return f"{_number(given.value)}{ends}{lost}"


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NOT_KNOWN


def _signed(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else NOT_KNOWN


def _between(low: float, high: float) -> str:
    return f"{low:+.3f} to {high:+.3f}" if math.isfinite(low) else "needs two or more"


def _name(text: str) -> str:
    return one_line(text, LONGEST)


def _marked(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.verdict in ("up", "down", "regression") else text


def _escaped(text: str) -> str:
    """So that a name or a model's text is no Markdown and no HTML."""
    for mark in "\\|`*_[]<>":
        text = text.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return text.replace("\n", " ")
