"""The section of a report with episodes of several turns, at the first and the last evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from mmrl.evaluation.episodes.episode_files import load_episodes
from mmrl.evaluation.episodes.episode_html import LONGEST, episodes_html
from mmrl.evaluation.report.page import folded, picture, section, shortened, tag, zoomable
from mmrl.evaluation.results import Evaluation

NOTE = (
    "The same prompts and noise. Frames and rings are the boxes and points that an action names, on the picture that "
    "the policy saw before it. Below an action: the rewards of the turn, and what the environment measured."
)


def episode_cards(title: str, folder: Path, steps: Sequence[int], are_folded: bool = False) -> str:
    """Return a section with the episodes that the first and the last of some evaluations kept; empty without any.

    Raises:
        EvaluationError: a file is damaged.
    """
    kept = {step: load_episodes(folder, step) for step in dict.fromkeys([*steps[:1], *steps[-1:]])}
    kept = {step: episodes for step, episodes in kept.items() if episodes}
    if not kept:
        return ""
    evaluation = Evaluation.load(folder, next(reversed(kept)), images=False)
    cards = []
    for place in sorted({place for episodes in kept.values() for place in episodes}):
        found = [(f"step {step}", episodes[place]) for step, episodes in kept.items() if place in episodes]
        if len({episode.id for _, episode in found}) > 1:
            found = found[-1:]  # other prompts: nothing to compare
        sample = place[0]
        if sample >= len(evaluation.ids) or evaluation.ids[sample] != found[-1][1].id:
            continue
        source = tag(evaluation.sources[sample]) if len(set(evaluation.sources)) > 1 else ""
        question = f"<blockquote>{escape(shortened(evaluation.prompts[sample], LONGEST))}{source}</blockquote>"
        cards.append(f'<figure class="card">{question}{episodes_html(found, zoomable_picture)}</figure>')
    body = f'<div class="episodes">{"".join(cards)}</div>'
    heading = f"Episodes{title}"
    return section(heading, folded(f"{len(cards)} episodes", body) if are_folded else body, NOTE) if cards else ""


def zoomable_picture(caption: str, image: Image.Image, alt: str) -> str:
    """Return a picture with its caption that a click enlarges."""
    return zoomable([(caption, picture(image, alt))])
