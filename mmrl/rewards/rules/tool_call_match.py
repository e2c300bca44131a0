"""A graded reward for the calls that an answer writes: names of tools, names of parameters, values (ToolRL)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.json_text import STRICT_JSON

Grade = Literal["fine", "calls", "exact"]
OPENING, CLOSING = "<tool_call>", "</tool_call>"
MAX_CHARACTERS = 100_000
LOWEST, HIGHEST = -3.0, 3.0


@dataclass(frozen=True)
class WrittenCall:
    """A call by name, with its parameters."""

    name: str
    parameters: Mapping[str, Any]


class ToolCallMatch(Reward):
    """The agreement of the written calls with those wanted, from -3 (none, or malformed) to 3 (the same calls).

    `references["answer"]` is a list such as [{"name": "set_light", "parameters": {"room": "hall", "level": 7}}]; an
    answer has its calls between <tool_call> and </tool_call>, each a JSON object of the same form (`arguments` may
    stand for `parameters`). With `grade: fine` the score is

        6 S / (1 + G + P) - 3,  S = names + Σ over wanted calls (names of parameters + right values)

    where `names` is the Jaccard index of the two bags of tool names, G wanted calls have P parameters in all, and each
    wanted call is compared with the unused written one of its tool that agrees most: the Jaccard index of the names of
    parameters, and 1 for each equal value. `grade: calls` counts 1 for each wanted call that is written exactly, over
    1 + G; `grade: exact` is 3 for the same calls in the same order, and -3 for all else. The further score
    `calls_exact` is 1 for the same calls in any order, else 0.

    The reward for the form, 0 or 1 in the paper, is `format` with the tags `think` and `tool_call`. qiancheng0/ToolRL
    verl/utils/reward_score/rlla.py@8cee13e, whose pairing of calls, greedy in the order wanted, is this one's.
    """

    name, needs, range = "tool_call_match", ("text", "references.answer"), (LOWEST, HIGHEST)
    source = "ToolRL, arXiv:2504.13958"

    def __init__(self, grade: Grade = "fine") -> None:
        """
        Args:
            grade: how fine the grades are: by parameters, by calls, or all or nothing.
        """
        if grade not in get_args(Grade):
            raise RewardError(f"tool_call_match: grade is {grade!r}; it is one of {', '.join(get_args(Grade))}")
        self.grade: Grade = grade

    def score_one(self, item: RewardInput) -> dict[str, float]:
        wanted = _wanted(item.references["answer"])
        try:
            written = written_calls(item.text or "")
        except InvalidAnswer:  # a malformed call is wrong, not unscored: the further score has another minimum
            return {self.name: LOWEST, "calls_exact": 0.0}
        if len(written) == len(wanted) and all(map(same_call, written, wanted)):
            return {self.name: HIGHEST, "calls_exact": 1.0}
        exact = len(written) == len(wanted) == _exact_matches(written, wanted)
        return {self.name: graded(written, wanted, self.grade), "calls_exact": float(exact)}


def graded(written: Sequence[WrittenCall], wanted: Sequence[WrittenCall], grade: Grade = "fine") -> float:
    """Return ToolRL's reward of calls that are not the wanted ones in order, in [-3, 3]."""
    if grade == "exact":
        return LOWEST
    score = bag_jaccard([call.name for call in wanted], [call.name for call in written])
    if grade == "calls":
        return _scaled((score + _exact_matches(written, wanted)) / (1 + len(wanted)))
    unused = list(written)
    for call in wanted:
        best, found = 0.0, None
        for other in unused:
            agreement = parameter_agreement(other, call) if other.name == call.name else 0.0
            if agreement > best:
                best, found = agreement, other
        if found is not None:
            unused = [other for other in unused if other is not found]
        score += best
    return _scaled(score / (1 + sum(1 + len(call.parameters) for call in wanted)))


def parameter_agreement(written: WrittenCall, wanted: WrittenCall) -> float:
    """Return the Jaccard index of the names of parameters, plus 1 for each equal value."""
    values = sum(
        name in written.parameters and equal_values(written.parameters[name], value)
        for name, value in wanted.parameters.items()
    )
    return bag_jaccard(list(wanted.parameters), list(written.parameters)) + values


def bag_jaccard(one: Sequence[str], other: Sequence[str]) -> float:
    """Return the shared texts of two bags over all of them; 1 for two empty bags.

    >>> bag_jaccard(["a", "a", "b"], ["a"])
    0.3333333333333333
    """
    first, second = Counter(one), Counter(other)
    union = (first | second).total()
    return (first & second).total() / union if union else 1.0


def equal_values(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(equal_values(*pair) for pair in zip(one, other, strict=True))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def same_call(one: WrittenCall, other: WrittenCall) -> bool:
    """Return whether two calls have the same name and equal parameters, in any order."""
    return one.name == other.name and equal_values(one.parameters, other.parameters)


def written_calls(text: str) -> list[WrittenCall]:
    """Return the calls between <tool_call> and </tool_call>, of all such parts, in order.

    Raises:
        InvalidAnswer: there is none, or a part is not closed or has something else than calls.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; an answer has at most {MAX_CHARACTERS}")
    if OPENING not in text:
        raise InvalidAnswer(f"there is no {OPENING}")
    found: list[WrittenCall] = []
    for part in text.split(OPENING)[1:]:
        inside, closing, _ = part.partition(CLOSING)
        if not closing:
            raise InvalidAnswer(f"a {OPENING} is never closed")
        rest = inside.strip()
        while rest:
            try:
                value, end = STRICT_JSON.raw_decode(rest)
            except (ValueError, RecursionError):
                raise InvalidAnswer(f"{rest!r:.60} does not begin with a JSON object") from None
            found.append(_call(value))
            rest = rest[end:].strip()
    return found


def _call(value: Any) -> WrittenCall:
    parameters = value.get("parameters", value.get("arguments")) if isinstance(value, Mapping) else None
    if not isinstance(parameters, Mapping) or not isinstance(value.get("name"), str):
        raise InvalidAnswer(f"a call is {{'name': ..., 'parameters': {{...}}}}, not {value!r:.60}")
    return WrittenCall(value["name"], dict(parameters))


def _wanted(value: Any) -> list[WrittenCall]:
    if not isinstance(value, list | tuple) or not value:
        raise ScoringFailed(f"references['answer'] is {value!r:.60}; expected a list of calls", "reference")
    try:
        return [_call(each) for each in value]
    except InvalidAnswer as err:
        raise ScoringFailed(f"references['answer']: {err}", "reference") from err


def _exact_matches(written: Sequence[WrittenCall], wanted: Sequence[WrittenCall]) -> int:
    unused = list(written)
    for call in wanted:
        place = next((place for place, other in enumerate(unused) if same_call(other, call)), None)
        if place is not None:
            del unused[place]
    return len(written) - len(unused)


def _scaled(share: float) -> float:
    return LOWEST + (HIGHEST - LOWEST) * share
