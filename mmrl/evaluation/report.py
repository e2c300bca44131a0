"""A run as one page: `report.html`, self-contained, without scripts or outside requests."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import yaml
from PIL import Image

from mmrl.evaluation.charts import health_charts, kind_of, reward_charts, time_chart
from mmrl.evaluation.paired import Interval
from mmrl.evaluation.records import HELDOUT, RunRecord, read_run
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.summary import Change, RunSummary, interval_text, summarise_run

LARGEST = 512  # pixels of a picture's longer side on the page
UNKNOWN = "<td>&ndash;</td>"
TINY = 128  # pictures below this are drawn with square pixels
FACTS = {  # what a reader asks first
    "Model": "policy.model",
    "Trains": "policy.train",
    "Algorithm": "algorithm.name",
    "Transition": "sampling.transition.name",
    "Steps": "sampling.steps",
    "Guidance": "sampling.guidance_scale",
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
    unseen = read_run(run / HELDOUT) if (run / HELDOUT / "config.yaml").is_file() else None
    summary = summarise_run(run) if record.comparable else None
    unseen_summary = summarise_run(unseen.folder) if unseen and unseen.comparable else None
    body = [
        _head(record),
        *(f'<div class="warning">{escape(text)}</div>' for text in warnings(record, summary, unseen_summary)),
        _table("Before and after", record, summary) if summary else "",
        _pictures("Pictures", record),
        _table("Before and after, held-out prompts", record, unseen_summary) if unseen_summary else "",
        _pictures("Pictures of held-out prompts", unseen) if unseen else "",
        _section("Rewards", reward_charts(record)),
        _section("Training", health_charts(record) + time_chart(record)),
        f"<details><summary>Configuration</summary><pre>{escape(_yaml(record.config))}</pre></details>",
    ]
    path = run / "report.html"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(page(record.name, "\n".join(part for part in body if part)), encoding="utf-8")
    draft.replace(path)
    return path


def warnings(record: RunRecord, summary: RunSummary | None, unseen: RunSummary | None = None) -> list[str]:
    """What a reader must not overlook, as sentences. `unseen` is the summary of the held-out prompts."""
    found = []
    changes = _shown(record, summary.changes) if summary else {}
    risen = [n for n, change in changes.items() if kind_of(record, n) == "trained" and change.difference.mean > 0]
    for name, change in changes.items():
        if risen and kind_of(record, name) == "held out" and change.difference.mean < 0:
            hacked = change.difference.verdict == "down"
            found.append(
                f"{', '.join(risen)} rose while the held-out {name} fell by {-change.difference.mean:.3f}, from "
                f"{change.before:.3f} to {change.after:.3f}. Its 95 % interval, {interval_text(change.difference)}, "
                + ("lies below 0: the reward is probably being hacked." if hacked else "includes 0: it may be chance.")
            )
    elsewhere = dict(summary.by_source) if summary else {}
    if unseen:
        elsewhere["held-out prompts"] = unseen.changes
    for place, by_name in elsewhere.items():
        for name in risen:
            if name in by_name and by_name[name].difference.verdict == "down":
                found.append(f"{name} rose, but on {place} it fell by {-by_name[name].difference.mean:.3f}.")
    return found + _failures(record)


def _failures(record: RunRecord) -> list[str]:
    found = []
    for step in dict.fromkeys([*record.steps[:1], *record.steps[-1:]]):
        for name, counts in Evaluation.load(record.folder, step, images=False).counts.items():
            failed = {status: n for status, n in sorted(counts.items()) if status in ("error", "timeout")}
            if failed and (name != "total" or record.shows_total):
                told = ", ".join(f"{n} by {status}" for status, n in failed.items())
                total = sum(counts.values())
                found.append(f"Step {step}: {name} failed on {sum(failed.values())} of {total} answers ({told}).")
    return found


def page(title: str, body: str) -> str:
    """A whole HTML page that loads nothing from anywhere."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _head(record: RunRecord) -> str:
    done, planned = record.iterations
    state = (
        f"{done} iterations" if planned is None or done >= planned else f"unfinished: {done} of {planned} iterations"
    )
    rewards = ", ".join(f"{weight:g} × {name}" for name, weight in record.trained.items())
    facts = {label: record.setting(path) for label, path in FACTS.items()} | {"Rewards": rewards or None}
    if record.watched:
        facts["Held out"] = ", ".join(record.watched)
    cells = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(str(value))}</dd></div>"
        for label, value in facts.items()
        if value is not None
    )
    return f'<h1>{escape(record.name)}</h1><p class="soft">{escape(state)}</p><dl class="facts">{cells}</dl>'


def _table(title: str, record: RunRecord, summary: RunSummary) -> str:
    rows = _rows(record, summary.changes)
    if summary.diversity:
        before, after = summary.diversity
        ratio = f"× {summary.diversity_ratio:.2f}"
        rows.append(
            f"<tr><td>diversity</td><td>{before:.3f}</td><td>{after:.3f}</td><td>{ratio}</td>{'<td></td>' * 3}</tr>"
        )
    tables = [_wide(rows)]
    if len(summary.by_source) > 1:
        for source, changes in summary.by_source.items():
            tables.append(f"<h3>{escape(source)}</h3>")
            tables.append(_wide(_rows(record, changes)))
    note = f'<p class="soft">The same prompts and noise at step 0 and at step {summary.steps[1]}.</p>'
    return f"<section><h2>{title}</h2>{note}{''.join(tables)}</section>"


def _wide(rows: Iterable[str]) -> str:
    columns = ("reward", "base", "trained", "difference", "95 % interval", "prompts", "not scored")
    heads = "".join(f"<th>{column}</th>" for column in columns)
    return f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'


def _shown(record: RunRecord, changes: dict[str, Change]) -> dict[str, Change]:
    return {name: change for name, change in changes.items() if name != "total" or record.shows_total}


def _rows(record: RunRecord, changes: dict[str, Change]) -> list[str]:
    return [_row(record, name, change) for name, change in _shown(record, changes).items()]


def _row(record: RunRecord, name: str, change: Change) -> str:
    interval = change.difference
    kind = kind_of(record, name)
    tag = f'<span class="tag">{kind}</span>' if kind else ""
    return (
        f"<tr><td>{escape(name)}{tag}</td><td>{change.before:.3f}</td><td>{change.after:.3f}</td>"
        f"{_signed(interval.mean, interval)}<td>{interval_text(interval)}</td>"
        f"<td>{interval.n}</td><td>{interval.dropped}</td></tr>"
    )


def _signed(value: float, interval: Interval | None = None) -> str:
    """A cell for a difference, coloured by its sign, or by its interval where there is one."""
    kind = interval.verdict if interval else "up" if value > 0 else "down" if value < 0 else "unsure"
    return f'<td class="{kind}">{value:+.3f}</td>' if math.isfinite(value) else UNKNOWN


def _pictures(title: str, record: RunRecord) -> str:
    """The first draw of each prompt whose picture was kept, at the first and the last evaluation."""
    shown = [Evaluation.load(record.folder, step) for step in dict.fromkeys([*record.steps[:1], *record.steps[-1:]])]
    if shown and shown[0].ids != shown[-1].ids:
        shown = shown[-1:]  # nothing to set side by side
    cards = [_card(record, shown, sample) for sample in range(len(shown[0].ids) if shown else 0)]
    if not any(cards):
        return ""
    note = '<p class="soft">The same prompts and noise. Under each: rewards, and what they changed by.</p>'
    return f'<section><h2>{title}</h2>{note}<div class="cards">{"".join(cards)}</div></section>'


def _card(record: RunRecord, shown: list[Evaluation], sample: int) -> str:
    prompt = shown[0].prompts[sample]
    pair = ""
    for one in shown:
        image = one.images[sample * one.draws]
        if image is None:
            return ""
        pair += f"<div>step {one.step}{picture(image, f'{prompt} (step {one.step})')}</div>"
    caption = f"<blockquote>{escape(prompt)}</blockquote>"
    return f'<figure class="card"><div class="pair">{pair}</div>{caption}{_scores(record, shown, sample)}</figure>'


def _scores(record: RunRecord, shown: list[Evaluation], sample: int) -> str:
    lines = []
    for name in shown[0].values:
        if any(name not in one.values for one in shown) or (name == "total" and not record.shows_total):
            continue
        numbers = [float(one.values[name][sample * one.draws]) for one in shown]
        cells = "".join(f"<td>{number:.2f}</td>" if math.isfinite(number) else UNKNOWN for number in numbers)
        change = _signed(numbers[1] - numbers[0]) if len(numbers) == 2 else ""
        lines.append(f"<tr><td>{escape(name)}</td>{cells}{change}</tr>")
    return f"<table>{''.join(lines)}</table>"


def picture(image: Image.Image, alt: str) -> str:
    """An <img> that holds the picture itself, made smaller where it is large."""
    image = image.convert("RGB")
    tiny = ' class="tiny"' if max(image.size) < TINY else ""
    image.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img{tiny} src="data:image/png;base64,{data}" alt="{escape(alt)}">'


def _section(title: str, charts: str) -> str:
    return f'<section><h2>{title}</h2><div class="charts">{charts}</div></section>' if charts else ""


def _yaml(config: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
