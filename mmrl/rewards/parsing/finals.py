"""Where a text says which of the things in it is its answer: in tags, in a box, after "the answer is"."""

from __future__ import annotations

import re

from mmrl.rewards.answers import AnswerForm, answer_text, boxed
from mmrl.rewards.base import InvalidAnswer

LONGEST_TEXT = 10_000
"""Characters past which a short answer is not looked for."""

_BOX = "\\boxed{"

_LEAD_IN = re.compile(
    r"(?:\banswer(?:\s{1,3}is\b|\s?[:=\uff1a])|\b(?:the|correct|right|best|final|my)\s(?:option|choice)\s{1,3}is\b"
    r"|\u7b54\u6848\s?[\u662f\u4e3a:\uff1a])[\s:\uff1a]{0,9}",
    re.IGNORECASE,
)  # the last is "answer" in Chinese
# Markdown's bold, but not Python's power, as in 2**3.
_BOLD = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\[{])")
_SENTENCE_END = re.compile(r"[.?]\s")


def final_answer(text: str, form: AnswerForm = "auto") -> str:
    """`answer_text`, and out of it what stands in \\boxed{...}, which may stand inside or outside of the answer's tags.

    Raises:
        InvalidAnswer: as `answer_text`; different boxes; a box that says something else than the tags.
    """
    answer = answer_text(text, form)
    if form != "auto":
        return answer
    visible = text.rpartition("</think>")[2]
    if _BOX not in visible:
        return answer
    box = boxed(visible)
    if _BOX in box:
        raise InvalidAnswer("there is a \\boxed{...} inside of a \\boxed{...}")
    if "<answer>" in visible and _BOX not in answer and answer != box:
        raise InvalidAnswer(f"the tags hold {answer[:40]!r}, but the \\boxed{{...}} {box[:40]!r}")
    return box


def without_bold(text: str) -> str:
    """The text without Markdown's **."""
    return _BOLD.sub("", text)


def stated_finals(text: str) -> list[str]:
    """What follows "answer:", "the answer is" or "the correct option is", each to the end of its line.

    Empty where nothing is so marked. Bold is taken off first. The same statement twice counts once.
    """
    text = without_bold(text)
    marks = list(_LEAD_IN.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    lines = (text[mark.end() : end].partition("\n")[0].strip() for mark, end in zip(marks, ends, strict=False))
    return list(dict.fromkeys(line for line in lines if line))


def first_sentence(text: str) -> str:
    """A text up to the first full stop or question mark with white space behind it (3! may be a factorial)."""
    end = _SENTENCE_END.search(text)
    return (text[: end.start()] if end else text).strip().removesuffix(".").strip()


def only_stated(text: str) -> str:
    """The one answer that a text states, or the whole text where it marks none.

    Raises:
        InvalidAnswer: it states different ones, or is longer than what is read.
    """
    if len(text) > LONGEST_TEXT:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {LONGEST_TEXT} are read")
    finals = list(dict.fromkeys(first_sentence(final) for final in stated_finals(text)))
    if len(finals) > 1:
        raise InvalidAnswer(f"{len(finals)} different answers are stated: {', '.join(finals)[:60]!r}")
    return finals[0] if finals else without_bold(text).strip()
