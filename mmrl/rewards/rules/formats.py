"""Rewards for the form of an answer: its tags, each once and in order, and the tag that it begins with."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput

_BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols without a visible glyph: Hangul fillers and the empty Braille cell."""


class Format(Reward):
    """1 if the text has each tag once, in order and not empty, else 0.

    By default `<think>...</think><answer>...</answer>` and nothing else but white space; `strict=False` allows text
    before, between and after. A bad form scores 0 with status "ok", never "invalid", since this reward exists to judge
    it. Tags must match exactly: `<Think>`, `< think >` and look-alike letters do not count. White space and invisible
    characters alone count as empty. `opened=True` means that the chat template has already written the first opening
    tag, as for models that always think, and the text must not repeat it.

    The form of DeepSeek-R1 (arXiv:2501.12948). Unlike trl's `think_format_reward`, it rejects empty thoughts and second
    closing tags.
    """

    name, needs, range = "format", ("text",), (0.0, 1.0)
    source = "DeepSeek-R1, arXiv:2501.12948"

    def __init__(self, tags: Sequence[str] = ("think", "answer"), strict: bool = True, opened: bool = False) -> None:
        if isinstance(tags, str) or not tags or len(set(tags)) < len(tags):
            raise RewardError(f"format: tags is {tags!r}; expected a list of different names, as ['think', 'answer']")
        if odd := [tag for tag in tags if not tag or not tag.replace("_", "").replace("-", "").isalnum()]:
            raise RewardError(f"format: {odd[0]!r} is not a tag name; use letters, digits, - and _")
        self.tags, self.strict, self.opened = tuple(tags), strict, opened

    def score_one(self, item: RewardInput) -> float:
        text = f"<{self.tags[0]}>{item.text or ''}" if self.opened else item.text or ""
        return float(has_tags(text, self.tags, self.strict))


class LeadingTag(Reward):
    """1 if the answer begins with the tag of its sample, as `<CT>` before the thoughts, else 0.

    MediX-R1's reward for the recognition of the modality: `references["modality"]` names the tag, or the argument `tag`
    for all samples. The tag must be the first text that is not white space, without regard to case, and occur once.
    """

    name, needs, range = "leading_tag", ("text",), (0.0, 1.0)
    source = "MediX-R1, arXiv:2602.23363"

    def __init__(self, tag: str = "") -> None:
        self.tag = tag

    def score_one(self, item: RewardInput) -> float:
        tag = self.tag or item.references.get("modality")
        if not isinstance(tag, str) or not tag.strip():
            raise ScoringFailed("leading_tag needs a tag, as an argument or in references.modality", "missing")
        opening, text = f"<{tag.strip()}>".casefold(), (item.text or "").casefold()
        return float(text.lstrip().startswith(opening) and text.count(opening) == 1)


def has_tags(text: str, tags: Sequence[str], strict: bool = True) -> bool:
    """Return whether each <tag>...</tag> occurs once, in order and not empty; if `strict`, with nothing else."""
    outside, rest = [], text
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        before, opened, rest = rest.partition(opening)
        content, closed, rest = rest.partition(closing)
        if not opened or not closed or not _is_visible(content):
            return False
        outside.append(before)
    return not strict or not any(_is_visible(part) for part in [*outside, rest])


def _is_visible(text: str) -> bool:
    """Return whether the text has more than white space, controls and zero-width characters."""
    return any(not c.isspace() and c not in _BLANKS and unicodedata.category(c)[0] != "C" for c in text)
