"""Instructions that state the answer format, and the rewards that read it; both come from one `AnswerSpec`."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards.parsing.final_answer import AnswerFormat

Thinking: TypeAlias = Literal["off", "tags", "native"]
"""`tags`: the prompt asks for <think>...</think>; `native`: the model's own template opens <think>."""

FORMAT_WEIGHT = 0.1
"""Weight in [0, 1] of the reward `format` in the total, for answers with thinking."""


@dataclass(frozen=True)
class AnswerSpec:
    """An answer format: the words that request it, and the reward that reads it."""

    request: str
    """The content of the answer, in words that continue "Answer with nothing but"."""
    reward: RewardChoice
    """A reward by name; one of a task's own file is made known by `mmrl.rewards.register`."""
    boxed: bool = False
    """True if the answer is written in \\boxed{}."""
    has_coordinates: bool = False
    """True if the answer contains coordinates: its boxes and its reward then use the model's coordinate space."""


def answer_format(spec: AnswerSpec, thinking: Thinking) -> AnswerFormat:
    """Return the place in a completion where rewards look for the answer."""
    if spec.boxed:
        return "boxed"
    return "tags" if thinking == "tags" else "auto"


def instruction(spec: AnswerSpec, thinking: Thinking, coordinates: str = "") -> str:
    """Return the sentences that a prompt ends with; `coordinates` is the sentence about the coordinate space."""
    if thinking == "tags":
        first = "First think about it between <think> and </think>. "
        if spec.boxed:
            words = f"{first}Then give {spec.request} in \\boxed{{}}."
        else:
            words = f"{first}Then answer between <answer> and </answer> with nothing but {spec.request}."
    elif spec.boxed:
        words = f"Give {spec.request} in \\boxed{{}}."
    else:
        words = f"Answer with nothing but {spec.request}."
    return f"{words} {coordinates}".strip()


def rewards_for(spec: AnswerSpec, thinking: Thinking, args: Mapping[str, Any]) -> tuple[RewardChoice, ...]:
    """Return the rewards of an answer: the one that reads it and, with thinking, `format`; their weights sum to 1."""
    content = replace(spec.reward, args=dict(args))
    if thinking == "off":
        return (content,)
    if thinking == "native":
        form: dict[str, Any] = {"tags": ["think"], "opened": True, "strict": False}
    else:
        form = {"tags": ["think"], "strict": False} if spec.boxed else {}
    return replace(content, weight=1 - FORMAT_WEIGHT), RewardChoice("format", FORMAT_WEIGHT, form)


def with_instruction(sample: Sample, text: str) -> Sample:
    """Return the sample with a text appended, on a new line, to its prompt or last message of the user."""
    if not sample.messages:
        return replace(sample, prompt=f"{sample.prompt}\n{text}")
    turns = [dict(turn) for turn in sample.messages]
    last = next(turn for turn in reversed(turns) if turn.get("role", "user") == "user")
    content = last.get("content", "")
    if isinstance(content, str):
        last["content"] = f"{content}\n{text}"
    else:
        last["content"] = [*content, {"type": "text", "text": text}]
    return replace(sample, messages=tuple(turns))


def options_of(sample: Sample) -> dict[str, str]:
    """Return {letter: text} of the options under `choices` or `options` of a sample's metadata."""
    options = sample.metadata.get("choices", sample.metadata.get("options"))
    if isinstance(options, Mapping):
        return {str(letter): str(text) for letter, text in options.items()}
    if isinstance(options, Sequence) and not isinstance(options, str):
        return dict(zip(string.ascii_uppercase, map(str, options), strict=False))
    return {}


def option_list(sample: Sample) -> str:
    """Return the options of a sample, one per line; empty if its text has each of them behind its letter.

    A text such as "on" or "1" is part of many a question that lists no options.
    """
    options, words = options_of(sample), _words_of(sample)
    if all(_is_listed(letter, text, words) for letter, text in options.items()):
        return ""
    return "\n".join(f"{letter}. {text}" for letter, text in options.items())


def _is_listed(letter: str, text: str, words: str) -> bool:
    """Return whether words have an option as "B red", "(B) red" or "B. red"; a text may bring its own letter."""
    own = re.match(rf"[(\[]?{re.escape(letter)}[).:\]]", text)
    lead = "" if own else rf"(?<!\w){re.escape(letter)}\W{{1,5}}"
    return re.search(rf"{lead}{re.escape(text)}(?!\w)", words) is not None


def _words_of(sample: Sample) -> str:
    """Return the text of a sample's prompt or messages."""
    contents = [turn.get("content", "") for turn in sample.messages] or [sample.prompt]
    parts = [part for content in contents for part in ([content] if isinstance(content, str) else content)]
    return "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in parts)
