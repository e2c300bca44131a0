"""`CallRunner`: tool calls in threads, each with a deadline; one that hangs or dies becomes a result of that kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from mmrl.environments.environment import Observation
from mmrl.environments.episode_batch import error_of
from mmrl.environments.tool import BadArguments, CallRejected, Tool, ToolContext
from mmrl.rewards.core.executor import DaemonPool

MAX_HANGING = 16
"""The number of abandoned calls of one tool that still run, above which no further one is started."""


@dataclass(frozen=True)
class CallResult:
    """The end of one call."""

    kind: str
    """`ok`; the policy's mistakes `malformed`, `refused`, `unknown`; the tool's failures `timeout`, `error`."""
    observation: Observation
    detail: str = ""
    """The error of a tool that failed."""

    @property
    def is_void(self) -> bool:
        """True if the call says nothing about the policy."""
        return self.kind in ("timeout", "error")


class CallRunner:
    """Runs the calls of all episodes of an environment.

    A tool with a `concurrency` has as many places; the deadline of a call begins when it has one. The thread of an
    abandoned call runs on until the call ends, and its place is free at once.
    """

    def __init__(self, tools: Sequence[Tool], deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._places = {tool.name: threading.BoundedSemaphore(tool.concurrency) for tool in tools if tool.concurrency}
        self._hanging: Counter[str] = Counter()
        self._lock = threading.Lock()  # guards _hanging

    def run_all(self, calls: Sequence[tuple[Tool, ToolContext, Mapping[str, Any]]]) -> list[CallResult]:
        """Return the results of calls that run at once, in order."""
        if len(calls) < 2:
            return [self.run(*call) for call in calls]
        pool = DaemonPool(len(calls), "tool-calls")
        futures = [pool.submit(partial(self.run, *call)) for call in calls]
        results = [future.result() for future in futures]
        pool.close()
        return results

    def run(self, tool: Tool, context: ToolContext, arguments: Mapping[str, Any]) -> CallResult:
        """Return the result of one call; raises nothing that the tool raises."""
        place = self._places.get(tool.name)
        if place is None:
            return self._run_in_time(tool, context, arguments)
        with place:
            return self._run_in_time(tool, context, arguments)

    def _run_in_time(self, tool: Tool, context: ToolContext, arguments: Mapping[str, Any]) -> CallResult:
        with self._lock:
            hanging = self._hanging[tool.name]
        if hanging >= MAX_HANGING:
            return _failed("timeout", f"{hanging} earlier calls of {tool.name} still run")
        pool = DaemonPool(1, f"tool-{tool.name}")
        call = pool.submit(partial(tool.call, context, arguments))
        try:
            observation = call.result(self._deadline_s)
        except TimeoutError as err:
            if call.done():  # the tool's own
                return _failed(*error_of(err))
            self._count_until_it_ends(tool.name, call)
            return _failed("timeout", f"{tool.name} gave no answer within {self._deadline_s:g} s")
        except BadArguments as err:
            return CallResult("malformed", Observation(f"The arguments of {tool.name} are wrong: {err}"))
        except CallRejected as err:
            return CallResult("refused", Observation(f"{tool.name} was not carried out: {err}"))
        except BaseException as err:  # a border: a tool may raise anything, SystemExit and MemoryError included
            if not call.done():  # Ctrl-C in this thread
                raise
            return _failed(*error_of(err))
        finally:
            pool.close()
        if problem := _problem_of(observation):
            return _failed("error", f"{tool.name} returned {problem}")
        return CallResult("ok", observation)

    def _count_until_it_ends(self, name: str, call: Future[Observation]) -> None:
        with self._lock:
            self._hanging[name] += 1

        def ended(_: Future[Observation]) -> None:
            with self._lock:
                self._hanging[name] -= 1

        call.add_done_callback(ended)


def _problem_of(observation: Any) -> str | None:
    """Return what is wrong with the return value of a tool."""
    if not isinstance(observation, Observation):
        return f"{type(observation).__name__}, not an Observation"
    if not isinstance(observation.text, str):
        return f"an Observation whose text is a {type(observation.text).__name__}"
    if not all(isinstance(image, Image.Image) for image in observation.images):
        return "an Observation whose images are not all PIL images"
    return None


def _failed(kind: str, detail: str) -> CallResult:
    return CallResult(kind, Observation(), detail)
