"""What a policy made of some prompts, before and after training, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from mmrl.evaluation.image_grid import first_of_each_source
from mmrl.evaluation.report.page import LARGEST, picture, shortened, zoomable
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.run_reader import RunRecord
from mmrl.rewards.core.reward_errors import Status
from mmrl.statistics.intervals import paired_means

LONGEST = 600  # characters of a prompt or an answer on a card
ZOOM = (
    " Choose a picture to see it large, pixel by pixel, for grid patterns and saturation; again to close it. Any of "
    f"more than {LARGEST} pixels is made smaller here, and is whole in samples/."
)
UNKNOWN = "<td>&ndash;</td>"


def cards(title: str, record: RunRecord, headline: str | None = None) -> str:
    """A section with the first draw of some prompts, at the first and the last evaluation; empty if nothing is there.

    Pictures: of each prompt whose picture was kept. Answers in text: of the first prompts of each source. Where there
    are two evaluations, they are ordered by the change in `headline`, the largest rises and falls first.
    """
    shown = [Evaluation.load(record.folder, step) for step in dict.fromkeys([*record.steps[:1], *record.steps[-1:]])]
    if shown and shown[0].ids != shown[-1].ids:
        shown = shown[-1:]  # nothing to set side by side
    if not shown:
        return ""
    written = all(one.has_answers for one in shown)
    if written:
        made = {n: _answer_card(record, shown, n) for n in first_of_each_source(shown[0].sources, record.cards)}
    else:
        made = {n: _picture_card(record, shown, n) for n in range(len(shown[0].ids))}
    made = {n: card for n, card in made.items() if card}
    if not made:
        return ""
    note = "The same prompts and noise. Under each: rewards, and what they changed by."
    note += ZOOM if any("<img" in card for card in made.values()) else ""
    ordered = headline is not None and len(shown) == 2 and all(headline in one.values for one in shown)
    body = _ordered(shown, str(headline), made) if ordered else _grid(made.values())
    heading = f"{'Answers' if written else 'Pictures'}{escape(title)}"
    return f'<section><h2>{heading}</h2><p class="soft">{note}</p>{body}</section>'


def _ordered(shown: list[Evaluation], headline: str, made: Mapping[int, str]) -> str:
    """The cards by their change, under headings; those between the largest rises and falls can be folded away."""
    order = by_change(shown[0], shown[1], headline, list(made))
    rose, stayed, fell = went(shown[0], shown[1], headline)
    told = (
        f"By change in {headline}, of {len(made)} prompts that are kept with what was made of them. Of all "
        f"{len(shown[0].ids)}: {rose} rose, {stayed} stayed, {fell} fell."
    )
    parts = [f'<p class="soft">{escape(told)}</p>']
    for title, chosen in (("Rose most", order.rose), ("Fell most", order.fell)):
        none = f'<p class="soft">None of those that are kept {title.split()[0].lower()}.</p>'
        parts.append(f"<h3>{title}</h3>{_grid(made[n] for n in chosen) if chosen else none}")
    if order.others:
        rest = _grid(made[n] for n in order.others)
        parts.append(f"<details open><summary>The others, by change ({len(order.others)})</summary>{rest}</details>")
    return "".join(parts)


def _grid(made: Iterable[str]) -> str:
    return f'<div class="cards">{"".join(made)}</div>'


def change_cell(value: float, verdict: str) -> str:
    """A cell for a difference, coloured by its verdict."""
    return f'<td class="{verdict}">{value:+.3f}</td>' if math.isfinite(value) else UNKNOWN


def _picture_card(record: RunRecord, shown: list[Evaluation], sample: int) -> str:
    prompt = shown[0].prompts[sample]
    pair = []
    for one in shown:
        image = one.images[sample * one.draws]
        if image is None:
            return ""
        pair.append((f"step {one.step}", picture(image, f"{prompt} (step {one.step})")))
    caption = f"<blockquote>{escape(prompt)}</blockquote>"
    return f'<figure class="card">{zoomable(pair)}{caption}{_scores(record, shown, sample)}</figure>'


def _answer_card(record: RunRecord, shown: list[Evaluation], sample: int) -> str:
    """The picture that was shown, the question, what is right, and the answers. All of it is escaped: it was written
    by a model, or stands in a data set."""
    first = shown[0]
    seen = next((one.shown[sample] for one in shown if one.shown and one.shown[sample] is not None), None)
    image = ""
    if seen is not None:
        image = zoomable([("", picture(seen, f"shown with {shortened(first.prompts[sample], 100)!r}"))])
    source = f'<span class="tag">{escape(first.sources[sample])}</span>' if len(set(first.sources)) > 1 else ""
    lines = [("right", first.expected[sample] if first.expected else None)]
    lines += [(_label(one, sample), one.answer(sample)) for one in shown]
    told = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(shortened(text, LONGEST)) or '(nothing)'}</dd></div>"
        for label, text in lines
        if text is not None
    )
    question = f"<blockquote>{escape(shortened(first.prompts[sample], LONGEST))}{source}</blockquote>"
    return (
        f'<figure class="card">{image}{question}<dl class="answers">{told}</dl>'
        f"{_scores(record, shown, sample)}</figure>"
    )


def _label(one: Evaluation, sample: int) -> str:
    malformed = any(column[sample * one.draws] == Status.INVALID for column in one.status.values())
    return f"step {one.step}{', malformed' if malformed else ''}"


def _scores(record: RunRecord, shown: list[Evaluation], sample: int) -> str:
    lines = []
    for name in shown[0].values:
        if any(name not in one.values for one in shown) or (name == "total" and not record.shows_total):
            continue
        if all(one.status[name][sample * one.draws] == Status.NOT_APPLICABLE for one in shown):
            continue
        numbers = [float(one.values[name][sample * one.draws]) for one in shown]
        cells = "".join(f"<td>{number:.2f}</td>" if math.isfinite(number) else UNKNOWN for number in numbers)
        change = change_cell(moved := numbers[1] - numbers[0], _sign(moved)) if len(numbers) == 2 else ""
        lines.append(f"<tr><td>{escape(name)}</td>{cells}{change}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _sign(value: float) -> str:
    return "up" if value > 0 else "down" if value < 0 else "unsure"


# Prompts by how far a reward moved on them: what rose most, what fell most, and how many went which way.


MOST = 4
"""Prompts that are shown first, on either side."""


@dataclass(frozen=True)
class Ordered:
    """Prompts by number, each in one of the three."""

    rose: list[int]  # the highest change first; at most MOST
    fell: list[int]  # the lowest change first; at most MOST
    others: list[int]  # the highest change first; those whose change is not known at the end


def by_change(before: Evaluation, after: Evaluation, name: str, among: Sequence[int]) -> Ordered:
    """Some prompts by the change of one reward on their first draw, which is what a card shows of them."""
    moved = {n: float(after.by_prompt(name)[n, 0] - before.by_prompt(name)[n, 0]) for n in among}
    known = sorted((n for n in among if math.isfinite(moved[n])), key=lambda n: -moved[n])
    rose = [n for n in known if moved[n] > 0][:MOST]
    fell = [n for n in reversed(known) if moved[n] < 0][:MOST]
    others = [n for n in known if n not in (*rose, *fell)]
    return Ordered(rose, fell, others + [n for n in among if not math.isfinite(moved[n])])


def went(before: Evaluation, after: Evaluation, name: str) -> tuple[int, int, int]:
    """How many of all prompts rose, stayed and fell, by their mean over draws; those that could not be scored apart."""
    asked = before.asked(name) | after.asked(name)
    first, last, _ = paired_means(before.by_prompt(name)[asked], after.by_prompt(name)[asked])
    signs = np.sign(last - first)
    return int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum())
