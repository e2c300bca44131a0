"""The report of a run, `report.html`: one self-contained page without scripts or outside requests.

Its cards show the answers to some prompts before and after training, ordered by the change in reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import yaml

from mmrl.atomic_io import replace_text
from mmrl.evaluation.image_grid import first_of_each_source
from mmrl.evaluation.report.episode_cards import episode_cards
from mmrl.evaluation.report.page import (
    LARGEST,
    answer_list,
    card_grid,
    charts_section,
    facts_list,
    folded,
    number_cell,
    page,
    picture,
    section,
    shortened,
    tag,
    wide_table,
    zoomable,
)
from mmrl.evaluation.report.run_charts import (
    by_source_charts,
    health_charts,
    process_table,
    reward_charts,
    time_chart,
    time_table,
)
from mmrl.evaluation.results import Evaluation, RewardChange
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.run_warnings import displayed_changes, read_splits, run_warnings
from mmrl.evaluation.summary import (
    DIFFERENCE,
    RunSummary,
    change_columns,
    change_texts,
    summarise_run,
    verdict_text,
)
from mmrl.rewards.core.reward_errors import Status
from mmrl.statistics.intervals import paired_means

LONGEST = 600  # characters of a prompt or an answer on a card
MOST = 4
"""Prompts that are shown first, at either end."""
ZOOM = (
    " Choose a picture to see it large, pixel by pixel, for grid patterns and saturation; again to close it. Any of "
    f"more than {LARGEST} pixels is made smaller here, and is whole in samples/."
)
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
        episode_cards("", record.folder, record.steps),
        example_cards("", record, summary.headline if summary else None),
    ]
    for split, its, found in splits:
        body += [
            _table(f"Before and after, {split.title}", record, found, split.note) if found else "",
            episode_cards(f", {split.title}", its.folder, its.steps, are_folded=True),
            example_cards(f", {split.title}", its, found.headline if found else None),
        ]
    config = yaml.safe_dump(dict(record.config), sort_keys=False, allow_unicode=True, width=100)
    body += [
        charts_section("Rewards", reward_charts(record)),
        charts_section("By source", by_source_charts(record)),
        charts_section("Training", health_charts(record) + time_chart(record)),
        time_table(record),
        process_table(record),
        folded("Configuration", f"<pre>{escape(config)}</pre>"),
    ]
    return replace_text(
        run / "report.html", page(record.name, "\n".join(part for part in body if part)), errors="backslashreplace"
    )


def _head(record: RunRecord) -> str:
    done, planned = record.iterations
    state = f"{done} iterations"
    if planned is not None and done < planned:
        state = f"{done} of {planned} iterations"
        if record.kl_exceeded:
            state = f"{state}: its KL limit was exceeded"
        elif record.hacking_stopped:
            state = f"{state}: a measured reward fell while the trained one rose"
        elif record.tokens_spent:
            state = f"{state}: its tokens are spent"
        else:
            state = f"unfinished: {state}"
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
    columns = change_columns(summary.changes.values())
    rows = _rows(record, summary.changes, columns)
    if summary.tokens:
        before, after = summary.tokens
        rows.append(_plain_row("length in tokens", before, after, 1, after / before if before else math.nan))
    if summary.diversity:
        rows.append(_plain_row("diversity", *summary.diversity, 3, summary.diversity_ratio))
    parts = [wide_table(("reward", *columns), rows)]
    if summary.sources:
        parts.append(f'<h3>By source</h3><p class="soft">{escape(verdict_text([summary]))}</p>')
        lines = [_row(escape(source), change, columns) for source, change in summary.sources.items()]
        parts.append(wide_table(("source", *columns), lines))
        every = "".join(
            f"<h3>{escape(source)}</h3>{wide_table(('reward', *columns), _rows(record, changes, columns))}"
            for source, changes in summary.by_source.items()
        )
        parts.append(folded("Every reward by source", every))
    note = f"{note} The same prompts and noise at step 0 and at step {summary.steps[1]}.".strip()
    return section(title, "".join(parts), note)


def _rows(record: RunRecord, changes: dict[str, RewardChange], columns: Sequence[str]) -> list[str]:
    roles = {name: record.role(name) for name in changes}
    return [
        _row(f"{escape(name)}{tag(roles[name]) if roles[name] else ''}", change, columns)
        for name, change in displayed_changes(record, changes).items()
    ]


def _row(label: str, change: RewardChange, columns: Sequence[str]) -> str:
    """Return a table row; `label` is HTML."""
    difference = number_cell(change.difference.mean, "+.3f", change.difference.verdict)
    texts = change_texts(change, columns)
    cells = (difference if column == DIFFERENCE else f"<td>{text}</td>" for column, text in texts.items())
    return f"<tr><td>{label}</td>{''.join(cells)}</tr>"


def _plain_row(label: str, before: float, after: float, digits: int, ratio: float) -> str:
    times = f"× {ratio:.2f}" if math.isfinite(ratio) else "&ndash;"
    return f"<tr><td>{label}</td><td>{before:.{digits}f}</td><td>{after:.{digits}f}</td><td>{times}</td></tr>"


@dataclass(frozen=True)
class PromptOrder:
    """The numbers of prompts, each in one of three lists."""

    rose: list[int]  # the largest rise first; at most MOST
    fell: list[int]  # the largest fall first; at most MOST
    others: list[int]  # the largest change first; those whose change is unknown at the end


def example_cards(title: str, record: RunRecord, headline: str | None = None) -> str:
    """Return a section with the first draw of some prompts, at the first and the last evaluation.

    Pictures: of each prompt whose picture was kept. Answers in text: of the first prompts of each source. With two
    evaluations, cards are ordered by the change in `headline`, the largest rises and falls first. Empty without cards.
    """
    evaluations = [
        Evaluation.load(record.folder, step) for step in dict.fromkeys([*record.steps[:1], *record.steps[-1:]])
    ]
    if evaluations and evaluations[0].ids != evaluations[-1].ids:
        evaluations = evaluations[-1:]  # other prompts: nothing to compare
    if not evaluations:
        return ""
    first, texts = evaluations[0], all(one.has_answers for one in evaluations)
    if texts:
        numbers = first_of_each_source(first.sources, record.num_examples)
        found = {n: _answer_card(record, evaluations, n) for n in numbers}
    else:
        found = {n: _picture_card(record, evaluations, n) for n in range(len(first.ids))}
    cards = {n: card for n, card in found.items() if card}
    if not cards:
        return ""
    note = "The same prompts and noise. Under each: rewards, and what they changed by."
    note += ZOOM if any("<img" in card for card in cards.values()) else ""
    ordered = headline is not None and len(evaluations) == 2 and all(headline in one.values for one in evaluations)
    body = _ordered(evaluations, str(headline), cards) if ordered else card_grid(cards.values())
    return section(f"{'Answers' if texts else 'Pictures'}{title}", body, note)


def by_change(before: Evaluation, after: Evaluation, name: str, among: Sequence[int]) -> PromptOrder:
    """Order some prompts by the change of one reward on their first draw, which is the one on a card."""
    change = {n: float(after.by_prompt(name)[n, 0] - before.by_prompt(name)[n, 0]) for n in among}
    known = sorted((n for n in among if math.isfinite(change[n])), key=lambda n: -change[n])
    rose = [n for n in known if change[n] > 0][:MOST]
    fell = [n for n in reversed(known) if change[n] < 0][:MOST]
    others = [n for n in known if n not in (*rose, *fell)]
    return PromptOrder(rose, fell, others + [n for n in among if not math.isfinite(change[n])])


def count_changes(before: Evaluation, after: Evaluation, name: str) -> tuple[int, int, int]:
    """Return the numbers of prompts that rose, stayed and fell, by their mean over scored draws."""
    requested = before.requested(name) | after.requested(name)
    first, last, _ = paired_means(before.by_prompt(name)[requested], after.by_prompt(name)[requested])
    signs = np.sign(last - first)
    return int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum())


def _ordered(evaluations: list[Evaluation], headline: str, cards: Mapping[int, str]) -> str:
    """Return the cards by their change, under headings; those between the largest rises and falls can be folded."""
    order = by_change(evaluations[0], evaluations[1], headline, list(cards))
    rose, stayed, fell = count_changes(evaluations[0], evaluations[1], headline)
    counts = (
        f"By change in {headline}, of {len(cards)} prompts whose answers were kept. Of all "
        f"{len(evaluations[0].ids)}: {rose} rose, {stayed} stayed, {fell} fell."
    )
    parts = [f'<p class="soft">{escape(counts)}</p>']
    for title, chosen in (("Rose most", order.rose), ("Fell most", order.fell)):
        none = f'<p class="soft">None of the kept ones {title.split()[0].lower()}.</p>'
        parts.append(f"<h3>{title}</h3>{card_grid(cards[n] for n in chosen) if chosen else none}")
    if order.others:
        rest = card_grid(cards[n] for n in order.others)
        parts.append(f"<details open><summary>The others, by change ({len(order.others)})</summary>{rest}</details>")
    return "".join(parts)


def _picture_card(record: RunRecord, evaluations: list[Evaluation], sample: int) -> str:
    prompt = evaluations[0].prompts[sample]
    pair = []
    for one in evaluations:
        image = one.images[sample * one.draws]
        if image is None:
            return ""
        pair.append((f"step {one.step}", picture(image, f"{prompt} (step {one.step})")))
    caption = f"<blockquote>{escape(prompt)}</blockquote>"
    return f'<figure class="card">{zoomable(pair)}{caption}{_scores(record, evaluations, sample)}</figure>'


def _answer_card(record: RunRecord, evaluations: list[Evaluation], sample: int) -> str:
    """Return the picture in the prompt, the question, the right answer and the model's. A model or a data set wrote
    them, so all are escaped."""
    first = evaluations[0]
    images = (one.prompt_images[sample] for one in evaluations if one.prompt_images)
    context = next((image for image in images if image is not None), None)
    image = ""
    if context is not None:
        image = zoomable([("", picture(context, f"shown with {shortened(first.prompts[sample], 100)!r}"))])
    source = tag(first.sources[sample]) if len(set(first.sources)) > 1 else ""
    texts = [("right", first.expected[sample] if first.expected else None)]
    texts += [(_label(one, sample), one.answer(sample)) for one in evaluations]
    question = f"<blockquote>{escape(shortened(first.prompts[sample], LONGEST))}{source}</blockquote>"
    answers = answer_list(texts, LONGEST)
    return f'<figure class="card">{image}{question}{answers}{_scores(record, evaluations, sample)}</figure>'


def _label(one: Evaluation, sample: int) -> str:
    malformed = any(column[sample * one.draws] == Status.INVALID for column in one.status.values())
    return f"step {one.step}{', malformed' if malformed else ''}"


def _scores(record: RunRecord, evaluations: list[Evaluation], sample: int) -> str:
    lines = []
    for name in evaluations[0].values:
        if any(name not in one.values for one in evaluations) or (name == "total" and not record.shows_total):
            continue
        if all(one.status[name][sample * one.draws] == Status.NOT_APPLICABLE for one in evaluations):
            continue
        numbers = [float(one.values[name][sample * one.draws]) for one in evaluations]
        cells = "".join(number_cell(number, ".2f") for number in numbers)
        if len(numbers) == 2:
            change = numbers[1] - numbers[0]
            cells += number_cell(change, "+.3f", "up" if change > 0 else "down" if change < 0 else "unsure")
        lines.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
