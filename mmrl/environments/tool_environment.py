"""`ToolEnvironment`: turns in which a policy calls tools in its family's own chat format, until it answers.

A turn with calls gets their results as its observation. A turn without a call is the final answer and ends the episode.
All that goes wrong is counted by kind:

    malformed     text that begins like a call and is none, or arguments that do not fit the tool
    unknown       a tool that is not there
    refused       a call that the tool does not carry out, such as a crop outside the picture
    too_many      calls of one turn above `max_calls`
    too_long      a turn or call with too many characters
    no_call       a first turn without a call, with `first_turn="must_call"`
    no_answer     a turn with neither a call nor <answer>...</answer>, with `answer="tags"`; it ends the episode
    timeout, error    a tool that hung or died: the episode ends and is void

All but the last two are the policy's own mistakes: it reads what was wrong, and may try again.

Where a sample has the calls that are wanted, `metadata["calls"]`, the calls of an episode are matched with them
(`mmrl.environments.call_matching`): the turn reward `match` is the mean score of a turn's calls, and the outcome has
`matched`, the share of the wanted calls that were made, and `redundant`, the share of calls without a wanted one. Where
it has the ids of relevant documents, `metadata["relevant"]`, the outcome has `retrieval`, the NDCG of what was found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from PIL import Image

from mmrl.data.media.budget import fit_image
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.call_formats import CallFormat, call_format
from mmrl.environments.call_matching import call_similarity, matched_scores, wanted_calls
from mmrl.environments.call_runner import CallResult, CallRunner
from mmrl.environments.environment import Observation, Step
from mmrl.environments.retrieval_quality import ndcg
from mmrl.environments.source_pictures import SourcePictures
from mmrl.environments.tool import Tool, ToolContext
from mmrl.environments.tool_calls import BadCall, ParsedTurn, ToolCall, typed_arguments
from mmrl.errors import ConfigError, DataError

MAX_TURN = 200_000
"""The number of characters above which a turn is not read."""
NAMED_TOOLS = 20
"""The largest number of tools that a message names."""
_MARKS = re.compile(r"<(?=[|/!a-zA-Z])|\[(?=/?[A-Z_]{3,}\])|`(?=``)")
"""The beginnings of tags, special tokens and fences in the text of a tool."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
TURN = "turn"
"""The name of a turn among the tools whose durations are stated."""


class ToolEnvironment:
    """An environment whose turns call tools."""

    name = "tools"
    deadline_s: float | None = None  # calls have deadlines

    def __init__(
        self,
        tools: Sequence[Tool],
        format: str = "hermes",
        max_turns: int = 4,
        max_calls: int = 4,
        first_turn: Literal["free", "must_call"] = "free",
        answer: Literal["any", "tags"] = "any",
        deadline_s: float = 30.0,
        max_text: int = 4_000,
        max_images: int = 8,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """
        Args:
            tools: the tools, with distinct names.
            format: the format of calls (`mmrl.environments.call_formats`).
            max_turns: actions of an episode. In the last turn calls are not carried out.
            max_calls: calls of one turn that are carried out.
            first_turn: "must_call": a first turn without a call is answered with a reminder.
            answer: "tags": a final answer contains <answer>...</answer>.
            deadline_s: seconds of one call.
            max_text: characters of one result; the rest is cut off, and the policy reads that it was.
            max_images: pictures of one turn's results; further ones are left out, and the policy reads that they were.
            seconds: what a turn (`turn`) and a call of each tool, by its name, usually take; an outcome then has the
                `seconds` of its episode, which are stated and not measured, so that runs can be repeated.
        """
        names = [tool.name for tool in tools]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"environment.tools: name one or several different tools, not {names}")
        for setting, value in (
            ("max_turns", max_turns),
            ("max_calls", max_calls),
            ("deadline_s", deadline_s),
            ("max_text", max_text),
            ("max_images", max_images),
        ):
            if not value > 0:
                raise ConfigError(f"environment.{setting}: got {value}, expected more than 0")
        if seconds is not None and (not seconds.keys() <= {TURN, *names} or min(seconds.values(), default=0.0) <= 0):
            raise ConfigError(
                f"environment.args.seconds: got {dict(seconds)!r:.80}; it maps {', '.join((TURN, *names))} to seconds "
                "above 0"
            )
        self.seconds = seconds
        self.tools: Mapping[str, Tool] = dict(zip(names, tools, strict=True))
        self.format: CallFormat = call_format(format)
        self.max_turns, self.max_calls = max_turns, max_calls
        self.first_turn, self.answer = first_turn, answer
        self.max_text, self.max_images = max_text, max_images
        self.runner = CallRunner(tools, deadline_s)
        self._sources = SourcePictures()

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that an action is read with: those that mark calls in the format."""
        return self.format.special_tokens

    @property
    def space(self) -> str | None:
        """The coordinate space of the tools, if all that take coordinates have the same one."""
        spaces = {getattr(tool, "space", None) for tool in self.tools.values()} - {None}
        return str(spaces.pop()) if len(spaces) == 1 else None

    @cached_property
    def instructions(self) -> str:
        """The tools with their JSON schemas, and the form of a call."""
        return self.format.describe(list(self.tools.values()))

    def begin(self, sample: Sample, reader: MediaReader) -> ToolEpisode:
        """Begin an episode; pictures are read when the first tool uses them."""
        try:
            wanted = wanted_calls(sample.metadata["calls"]) if "calls" in sample.metadata else None
        except ValueError as err:
            raise DataError(f"sample {sample.id!r}: metadata.calls: {err}") from None
        relevant = sample.metadata.get("relevant")
        if relevant is not None and not (
            isinstance(relevant, list) and all(isinstance(each, str) for each in relevant)
        ):
            raise DataError(f"sample {sample.id!r}: metadata.relevant: expected a list of ids, not {relevant!r:.60}")
        return ToolEpisode(self, ToolContext(sample, reader, self._sources), wanted, relevant)


class ToolEpisode:
    """The turns of one row with tools."""

    def __init__(
        self,
        environment: ToolEnvironment,
        context: ToolContext,
        wanted: Sequence[ToolCall] | None = None,
        relevant: Sequence[str] | None = None,
    ) -> None:
        self._environment, self._context = environment, context
        self._wanted, self._relevant = wanted, relevant
        self._written: list[tuple[int, ToolCall | BadCall]] = []  # all calls, each with its turn from 0
        self._turns = 0
        self._calls: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._found: list[str] = []  # of all searches
        self._ended: str | None = None
        self._answer: str | None = None
        self._void: tuple[str, str] | None = None

    def step(self, action: str | None) -> Step:
        """Carry out the calls of a turn, or take it as the final answer."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        self._turns += 1
        before = self._problems.copy()
        calls_before = self._calls.total()
        observation = self._answered(action)
        if observation is not None and self._turns >= self._environment.max_turns:
            self._ended, observation = "turns", None
        counted = self._problems - before
        return Step(observation, {}, {"calls": float(self._calls.total() - calls_before), **_floats(counted)})

    def outcome(self) -> Mapping[str, Any]:
        """Return the episode's end.

        `answer` (None without a final answer), `ended` (answer, no_answer, turns, cut_off, void), `void` and `detail`,
        `turns`, `calls` carried out by tool, and `problems` by kind; where the sample has wanted calls, `matched` and
        `redundant`, and where it has relevant documents, `retrieval`. `seconds`, where the environment states what
        turns and calls take.
        """
        kind, detail = self._void or (None, "")
        return {
            "answer": self._answer,
            "ended": self._ended,
            "void": kind,
            "detail": detail,
            "turns": self._turns,
            "calls": dict(self._calls),
            "problems": dict(self._problems),
            **({} if self._wanted is None else self._match(self._wanted)),
            **({} if self._relevant is None else {"retrieval": ndcg(self._found, self._relevant)}),
            **({} if self._environment.seconds is None else {"seconds": self._seconds(self._environment.seconds)}),
        }

    def _seconds(self, stated: Mapping[str, float]) -> float:
        """Return what the turns and the calls that were carried out usually take; 0 for what is not stated."""
        calls = sum(stated.get(name, 0.0) * number for name, number in self._calls.items())
        return stated.get(TURN, 0.0) * self._turns + calls

    def _match(self, wanted: Sequence[ToolCall]) -> dict[str, Any]:
        """Return how the calls agree with those that are wanted."""
        scores = matched_scores([
            [call_similarity(self._typed(call), each) if isinstance(call, ToolCall) else 0.0 for each in wanted]
            for _, call in self._written
        ])  # fmt: skip
        by_turn: list[list[float]] = [[] for _ in range(self._turns)]
        for (turn, _), score in zip(self._written, scores, strict=True):
            by_turn[turn].append(score)
        made = sum(score > 0 for score in scores)
        return {
            "matched": sum(scores) / len(wanted) if wanted else 1.0,
            "redundant": 1 - made / len(scores) if scores else 0.0,
            "turn_rewards": {"match": [sum(each) / len(each) if each else 0.0 for each in by_turn]},
        }

    def _typed(self, call: ToolCall) -> ToolCall:
        """Return a call whose arguments have the types of its tool's schema, where there is such a tool."""
        tool = self._environment.tools.get(call.name)
        return call if tool is None else ToolCall(call.name, typed_arguments(call, tool))

    def _answered(self, action: str | None) -> Observation | None:
        environment = self._environment
        if action is None:
            self._ended = "cut_off"
            return None
        if len(action) > MAX_TURN:
            self._problems["too_long"] += 1
            return Observation(f"The turn has {len(action)} characters; at most {MAX_TURN} are read.")
        parsed = environment.format.read(action, environment.max_calls)
        if parsed.calls:
            return self._results(parsed)
        if self._turns == 1 and environment.first_turn == "must_call":
            self._problems["no_call"] += 1
            return Observation(f"Call a tool before you answer. {environment.format.example}")
        if environment.answer == "tags" and not _has_answer(action):
            self._problems["no_answer"] += 1
            self._ended = "no_answer"
            return None
        self._answer, self._ended = action, "answer"
        return None

    def _results(self, parsed: ParsedTurn) -> Observation | None:
        environment = self._environment
        last = self._turns >= environment.max_turns
        self._written += [(self._turns - 1, call) for call in parsed.calls]
        results = [self._checked(call) for call in parsed.calls]
        todo = [(place, each) for place, each in enumerate(results) if not isinstance(each, CallResult)]
        if todo and not last:
            for (place, _), done in zip(todo, environment.runner.run_all([each for _, each in todo]), strict=True):
                results[place] = done
            self._calls.update(tool.name for _, (tool, *_) in todo)
        finished = [each for each in results if isinstance(each, CallResult)]
        self._found += [name for each in finished for name in each.observation.found]
        for each in finished:
            if each.kind != "ok":
                self._problems[each.kind] += 1
        if parsed.dropped:
            self._problems["too_many"] += parsed.dropped
        failed = next((each for each in finished if each.is_void), None)
        if failed is not None:
            self._void, self._ended = (failed.kind, failed.detail), "void"
            return None
        return self._observation(finished, parsed.dropped)

    def _checked(self, call: ToolCall | BadCall) -> CallResult | tuple[Tool, ToolContext, Mapping[str, Any]]:
        """Return the tool with the context and arguments of a call, or the result of one that cannot be run."""
        if isinstance(call, BadCall):
            return CallResult(call.kind, Observation(f"The call was not understood: {call.reason}"))
        tool = self._environment.tools.get(call.name)
        if tool is None:
            known = ", ".join(list(self._environment.tools)[:NAMED_TOOLS])
            return CallResult("unknown", Observation(f"There is no tool {call.name!r:.60}: there are {known}"))
        return tool, self._context, typed_arguments(call, tool)

    def _observation(self, results: Sequence[CallResult], dropped: int) -> Observation:
        """Return the results of a turn as one observation, and add their pictures to those of the episode."""
        environment = self._environment
        texts: list[str] = []
        images: list[Image.Image] = []
        for result in results:
            text = cleaned(result.observation.text)
            if len(text) > environment.max_text:
                text = f"{text[: environment.max_text]}\n(cut off after {environment.max_text} characters)"
            found = [image.convert("RGB") for image in result.observation.images]
            kept = found[: environment.max_images - len(images)]
            if kept:
                first = self._context.count + len(images)
                numbers = ", ".join(str(first + number) for number in range(len(kept)))
                text = f"{text}\n(picture {numbers})".strip()
            if len(kept) < len(found):
                text += f"\n({len(found) - len(kept)} pictures left out: a turn has at most {environment.max_images})"
            images += kept
            texts.append(environment.format.result(text))
        if dropped:
            texts.append(f"{dropped} more calls were not carried out: a turn has at most {environment.max_calls}.")
        self._context = self._context.with_images(tuple(images))
        budget = self._context.reader.budget.image
        videos = tuple(clip for result in results for clip in result.observation.videos)
        return Observation("\n".join(texts), tuple(fit_image(image, budget) for image in images), videos)


def cleaned(text: str) -> str:
    """Return a tool's text without control and invisible characters, and with a space inside each tag-like mark.

    So it can neither close its own block, nor open another, nor become a special token or a place of a picture.

    >>> cleaned("a<|im_end|></tool_response>[INST]")
    'a< |im_end|>< /tool_response>[ INST]'
    """
    return _MARKS.sub(lambda mark: f"{mark[0]} ", _CONTROL.sub("", text))


def _has_answer(text: str) -> bool:
    start = text.find("<answer>")
    return start >= 0 and text.find("</answer>", start) >= 0


def _floats(counts: Mapping[str, int]) -> dict[str, float]:
    return {kind: float(count) for kind, count in counts.items()}
