"""The words that tell a model how to answer, and the form in which rewards then read it: said once, in `Kind`."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards.parsing.final_answer import AnswerFormat

Thinking: TypeAlias = Literal["off", "tags", "native"]
"""`tags`: the prompt asks for <think>...</think>; `native`: the model's own template opens <think>."""

FORMAT_WEIGHT = 0.1
"""Share of the total that the form of the thinking has, where there is any."""


@dataclass(frozen=True)
class Kind:
    """One way to answer: the words that ask for it, and the reward that reads it."""

    ask: str
    """What the answer holds, behind "Answer with nothing but"."""
    reward: RewardChoice
    boxed: bool = False
    """Whether it stands in \\boxed{} rather than alone."""
    places: bool = False
    """Whether it holds coordinates."""


def answer_form(kind: Kind, thinking: Thinking) -> AnswerFormat:
    """Where rewards look for the answer."""
    if kind.boxed:
        return "boxed"
    return "tags" if thinking == "tags" else "auto"


def instruction(kind: Kind, thinking: Thinking, coordinates: str = "") -> str:
    """The sentences that a prompt ends with; `coordinates` says what coordinates count."""
    if thinking == "tags":
        first = "First think about it between <think> and </think>. "
        if kind.boxed:
            said = f"{first}Then give {kind.ask} in \\boxed{{}}."
        else:
            said = f"{first}Then answer between <answer> and </answer> with nothing but {kind.ask}."
    elif kind.boxed:
        said = f"Give {kind.ask} in \\boxed{{}}."
    else:
        said = f"Answer with nothing but {kind.ask}."
    return f"{said} {coordinates}".strip()


def rewards_for(kind: Kind, thinking: Thinking, args: Mapping[str, Any]) -> tuple[RewardChoice, ...]:
    """The rewards of an answer, in [0, 1] together: what reads it, and with thinking also the form of the whole."""
    content = replace(kind.reward, args=dict(args))
    if thinking == "off":
        return (content,)
    if thinking == "native":
        form: dict[str, Any] = {"tags": ["think"], "opened": True, "strict": False}
    else:
        form = {"tags": ["think"], "strict": False} if kind.boxed else {}
    return replace(content, weight=1 - FORMAT_WEIGHT), RewardChoice("format", FORMAT_WEIGHT, form)


def with_instruction(sample: Sample, said: str) -> Sample:
    """The sample whose prompt, or last message by the user, ends with the words on a line of their own."""
    if not sample.messages:
        return replace(sample, prompt=f"{sample.prompt}\n{said}")
    turns = [dict(turn) for turn in sample.messages]
    last = next(turn for turn in reversed(turns) if turn.get("role", "user") == "user")
    content = last.get("content", "")
    if isinstance(content, str):
        last["content"] = f"{content}\n{said}"
    else:
        last["content"] = [*content, {"type": "text", "text": said}]
    return replace(sample, messages=tuple(turns))


def options_of(sample: Sample) -> dict[str, str]:
    """{letter: text} of the options that a sample lists under `choices` or `options` of its metadata."""
    given = sample.metadata.get("choices", sample.metadata.get("options"))
    if isinstance(given, Mapping):
        return {str(letter): str(text) for letter, text in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str):
        return dict(zip(string.ascii_uppercase, map(str, given), strict=False))
    return {}


def listed(sample: Sample, asked: str) -> str:
    """The options, a line each, where the text that is asked does not name them all."""
    options = options_of(sample)
    if all(text in asked for text in options.values()):
        return ""
    return "\n".join(f"{letter}. {text}" for letter, text in options.items())


def asked_text(sample: Sample) -> str:
    """All that a sample says in words."""
    contents = [turn.get("content", "") for turn in sample.messages] or [sample.prompt]
    parts = [part for content in contents for part in ([content] if isinstance(content, str) else content)]
    return "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in parts)
