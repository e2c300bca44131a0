"""Cards of a report: the answers to some prompts before and after training, ordered by the change in reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from mmrl.evaluation.image_grid import first_of_each_source
from mmrl.evaluation.report.page import (
    LARGEST,
    answer_list,
    card_grid,
    number_cell,
    picture,
    section,
    shortened,
    zoomable,
)
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.run_reader import RunRecord
from mmrl.rewards.core.reward_errors import Status
from mmrl.statistics.intervals import paired_means

LONGEST = 600  # characters of a prompt or an answer on a card
MOST = 4
"""Prompts that are shown first, at either end."""
ZOOM = (
    " Choose a picture to see it large, pixel by pixel, for grid patterns and saturation; again to close it. Any of "
    f"more than {LARGEST} pixels is made smaller here, and is whole in samples/."
)


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
    source = f'<span class="tag">{escape(first.sources[sample])}</span>' if len(set(first.sources)) > 1 else ""
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
