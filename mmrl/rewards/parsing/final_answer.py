"""Extract the final answer from a completion.

    <think>two and one makes three</think><answer>3</answer>      tags
    ... so there are \\boxed{3} circles.                            boxed
    3                                                             plain

`auto` takes the tags if there are any, and otherwise everything after the reasoning. The form is set once: by a
reward's argument `form`, or by a sample for all its rewards, as `references["answer_form"]` (see `resolve_form`).
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput

AnswerFormat = Literal["auto", "tags", "boxed", "plain"]
MAX_CHARACTERS = 1_000_000  # number of characters above which a text is invalid as an answer
MAX_SHORT_CHARACTERS = 10_000  # number of characters above which a text is not searched for a short answer

_BOX = "\\boxed{"

_LEAD_IN = re.compile(
    r"(?:\banswer(?:\s{1,3}is\b|\s?[:=\uff1a])|\b(?:the|correct|right|best|final|my)\s(?:option|choice)\s{1,3}is\b"
    r"|\u7b54\u6848\s?[\u662f\u4e3a:\uff1a])[\s:\uff1a]{0,9}",
    re.IGNORECASE,
)  # the last is "answer" in Chinese
# Markdown's bold, but not Python's power, as in 2**3.
_BOLD = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\[{])")
_SENTENCE_END = re.compile(r"[.?]\s")


def resolve_form(item: RewardInput, own: AnswerFormat = "auto") -> AnswerFormat:
    """Return the expected form of an answer: the reward's own, or if that is `auto`, the form that the sample declares.

    Raises:
        ScoringFailed: `references["answer_form"]` is not an `AnswerFormat`.
    """
    declared: AnswerFormat = item.references.get("answer_form", "auto")
    if declared not in get_args(AnswerFormat):
        forms = ", ".join(get_args(AnswerFormat))
        raise ScoringFailed(f"references['answer_form'] is {declared!r:.40}; it is one of {forms}", "reference")
    return declared if own == "auto" else own


def answer_text(text: str, form: AnswerFormat = "auto") -> str:
    """Return the final answer in a completion, without white space around it; it may be empty.

    Raises:
        InvalidAnswer: the tags or the box are missing, not closed, occur twice or contain reasoning, or the text has
            more than `MAX_CHARACTERS` characters.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; an answer has at most {MAX_CHARACTERS}")
    if form == "boxed":
        return boxed_content(strip_thinking(text))
    if form == "tags" or (form == "auto" and ("<answer>" in text or "</answer>" in text)):
        answer = tag_content(text, "answer")
        if "<think>" in answer or "</think>" in answer:
            raise InvalidAnswer("the answer contains <think> or </think>")
        return answer
    return text.strip() if form == "plain" else strip_thinking(text)


def tag_content(text: str, tag: str) -> str:
    """Return the text between <tag> and </tag>, which must each occur once and in order."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        raise InvalidAnswer(
            f"{opening} occurs {text.count(opening)} and {closing} {text.count(closing)} times, not once each"
        )
    before, _, rest = text.partition(opening)
    if closing in before:
        raise InvalidAnswer(f"{closing} comes before {opening}")
    return rest.partition(closing)[0].strip()


def strip_thinking(text: str) -> str:
    """Return everything after the last </think>; the whole text if there is no <think>."""
    _, closed, rest = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise InvalidAnswer("<think> is never closed, so there is no answer")
    return rest.strip()


def boxed_content(text: str) -> str:
    """Return the content of the one \\boxed{...}, whose braces may be nested.

    Several boxes of the same content count as one.
    """
    found = list(dict.fromkeys(_boxes(text)))
    if len(found) != 1:
        raise InvalidAnswer(f"there are {len(found)} different \\boxed{{...}} in the text, not one")
    return found[0]


def _boxes(text: str) -> list[str]:
    opening, found, start = "\\boxed{", [], 0
    while (at := text.find(opening, start)) >= 0:
        depth, begin = 1, at + len(opening)
        end = begin
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise InvalidAnswer("a \\boxed{ is never closed")
        found.append(text[begin : end - 1].strip())
        start = end
    return found


def final_answer(text: str, form: AnswerFormat = "auto") -> str:
    """Return `answer_text`, or in the form `auto` the content of \\boxed{...} inside or outside the answer's tags.

    Raises:
        InvalidAnswer: as `answer_text`; there are different boxes, or a box that differs from the tags.
    """
    answer = answer_text(text, form)
    if form != "auto":
        return answer
    visible = text.rpartition("</think>")[2]
    if _BOX not in visible:
        return answer
    box = boxed_content(visible)
    if _BOX in box:
        raise InvalidAnswer("there is a \\boxed{...} inside a \\boxed{...}")
    if "<answer>" in visible and _BOX not in answer and answer != box:
        raise InvalidAnswer(f"the tags contain {answer[:40]!r}, but the \\boxed{{...}} {box[:40]!r}")
    return box


def strip_bold(text: str) -> str:
    """Return the text without Markdown's **."""
    return _BOLD.sub("", text)


def stated_answers(text: str) -> list[str]:
    """Return the texts after "answer:", "the answer is" or "the correct option is", each to the end of its line.

    The list is empty if there are no such phrases. Bold is removed first. Equal statements count once.
    """
    text = strip_bold(text)
    marks = list(_LEAD_IN.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    lines = (text[mark.end() : end].partition("\n")[0].strip() for mark, end in zip(marks, ends, strict=False))
    return list(dict.fromkeys(line for line in lines if line))


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop or question mark before white space (3! may be a factorial)."""
    end = _SENTENCE_END.search(text)
    return (text[: end.start()] if end else text).strip().removesuffix(".").strip()


def single_stated_answer(text: str) -> str:
    """Return the one answer that a text states, or the whole text if it states none.

    Raises:
        InvalidAnswer: the text states different answers, or has more than `MAX_SHORT_CHARACTERS` characters.
    """
    if len(text) > MAX_SHORT_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_SHORT_CHARACTERS} are read")
    finals = list(dict.fromkeys(first_sentence(final) for final in stated_answers(text)))
    if len(finals) > 1:
        raise InvalidAnswer(f"{len(finals)} different answers are stated: {', '.join(finals)[:60]!r}")
    return finals[0] if finals else strip_bold(text).strip()
