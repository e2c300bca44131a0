"""Episodes of several models on one sample, side by side: a row for each turn, a column for each model.

All texts are escaped. The page supplies the style of the classes that begin with `turn`, and the element around a
picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import zip_longest

from PIL import Image

from mmrl.evaluation.episodes.episode_view import EpisodeView, TurnView, marked_pictures
from mmrl.evaluation.report.page import shortened

LONGEST = 600
"""Characters of a text on a page."""
ENDS = {"cut_off": "the last turn has no end token", "context": "no further turn fits into the context"}

ShowPicture = Callable[[str, Image.Image, str], str]
"""From a caption, a picture and its alternative text to HTML."""


def episodes_html(columns: Sequence[tuple[str, EpisodeView]], show: ShowPicture) -> str:
    """Return the episodes as rows of turns, with their outcomes in the last row.

    Args:
        columns: the label and the episode of each model; all began with the same sample.
        show: the HTML of a picture with its caption.
    """
    heads = "".join(f'<div class="turn-head">{escape(label)}</div>' for label, _ in columns)
    pictures = [marked_pictures(episode) for _, episode in columns]
    rows = []
    for number, turns in enumerate(zip_longest(*(episode.turns for _, episode in columns))):
        cells = "".join(
            '<div class="turn"></div>'
            if turn is None
            else _turn(number, turn, pictures[place][number], columns[place][0], show)
            for place, turn in enumerate(turns)
        )
        rows.append(cells)
    ends = "".join(f'<div class="turn turn-end">{_ending(episode)}</div>' for _, episode in columns)
    return f'<div class="turns" style="--columns: {len(columns)}">{heads}{"".join(rows)}{ends}</div>'


def number_list(values: Mapping[str, float]) -> str:
    """Return names with numbers as one text.

    >>> number_list({"progress": 1.0, "hit": 0.5})
    'progress 1, hit 0.5'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def _turn(
    number: int, turn: TurnView, pictures: Sequence[tuple[str, Image.Image]], label: str, show: ShowPicture
) -> str:
    images = "".join(show(caption, image, f"{label}, turn {number + 1}: {caption}") for caption, image in pictures)
    observed = (
        f'<p class="turn-seen">{escape(shortened(turn.observed, LONGEST))}</p>' if number and turn.observed else ""
    )
    action = escape(shortened(turn.action, LONGEST)) or "(nothing)"
    rewards = f'<p class="turn-reward">{escape(number_list(turn.rewards))}</p>' if turn.rewards else ""
    info = f'<p class="turn-info">{escape(number_list(turn.info))}</p>' if turn.info else ""
    return (
        f'<div class="turn"><p class="turn-number">turn {number + 1}</p><div class="turn-pictures">{images}</div>'
        f'{observed}<p class="turn-action">{action}</p>{rewards}{info}</div>'
    )


def _ending(episode: EpisodeView) -> str:
    words = [f"{episode.left_out} more turns"] if episode.left_out else []
    words += [ENDS[episode.end]] if episode.end in ENDS else []
    facts = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(_text(value))}</dd>"
        for key, value in episode.outcome.items()
        if value is not None
    )
    note = f"<p>{escape('; '.join(words))}</p>" if words else ""
    return f'{note}<dl class="turn-outcome">{facts}</dl>'


def _text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else shortened(str(value), LONGEST)
