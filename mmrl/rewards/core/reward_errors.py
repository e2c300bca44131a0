"""The errors of rewards, and the status that a scored answer gets for each of them.

RewardError(ValueError)
    a reward that cannot be found, built or combined: raised before anything is scored, to be fixed by the caller

Errors during scoring never leave a reward: they become a `Status`. A scorer reports them by raising

InvalidAnswer(ValueError)
    the *answer* is malformed: it gets the worst value of the range
NotApplicable(ValueError)
    the *answer* has nothing that the reward measures: NaN, and no failure
ScoringFailed(RuntimeError)
    the *scorer* failed in a way that has a name: NaN (any other exception is a failure of the kind "error")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from mmrl.components import place_in_user_file

T = TypeVar("T")


class RewardError(ValueError):
    """A reward that cannot be found, built or combined. The message says what came, what was expected, what to do."""


class Status(StrEnum):
    """The result of scoring one answer."""

    OK = "ok"
    INVALID = "invalid"
    """The *answer* is malformed: it gets the worst value of the reward's range, and is counted."""
    ERROR = "error"
    """The *scorer* failed: NaN, masked out of advantages and metrics, and counted."""
    TIMEOUT = "timeout"
    """The scorer exceeded its deadline: treated as `ERROR`."""
    STOPPED = "stopped"
    """An earlier scorer of a cascade did not let the answer through: it gets the worst value, without a call."""
    NOT_APPLICABLE = "not_asked"
    """The answer's sample names other rewards than this one, or has nothing that it measures: NaN, and no failure."""


class InvalidAnswer(ValueError):
    """The answer, not the scorer, is at fault. The text goes into `RewardOutput.detail`."""


class NotApplicable(ValueError):
    """The answer has nothing that the reward measures, which is no fault of the answer or the scorer."""


@dataclass(frozen=True)
class Failure:
    """The reason why one answer could not be scored."""

    kind: str  # "error", "timeout", "http_503", ...: failures are counted by it
    transient: bool = False  # another attempt may succeed
    retry_after_s: float | None = None  # a server's Retry-After; a suite waits at least as long before another attempt


class ScoringFailed(RuntimeError):
    """The scorer, not the answer, is at fault."""

    def __init__(
        self, message: str, kind: str = "error", transient: bool = False, retry_after_s: float | None = None
    ) -> None:
        """Failures are counted by `kind` ("http_503", "timeout", ...); a `transient` one is scored again."""
        super().__init__(message)
        self.failure = Failure(kind, transient, retry_after_s)

    @property
    def kind(self) -> str:
        """The kind that the failure is counted by."""
        return self.failure.kind

    @property
    def transient(self) -> bool:
        """True if another attempt may succeed."""
        return self.failure.transient


def failure_record(error: Exception) -> tuple[Status, str, Failure]:
    """Return status, text and failure of an answer whose scorer raised `error`."""
    if isinstance(error, ScoringFailed):
        failure, text = error.failure, str(error)
    else:
        timed_out = isinstance(error, TimeoutError)
        failure = Failure("timeout", transient=True) if timed_out else Failure("error")
        place = place_in_user_file(error)
        text = f"{type(error).__name__}: {error}{f' ({place})' if place else ''}"
    return Status.TIMEOUT if failure.kind == "timeout" else Status.ERROR, text, failure


FAULTS = (InvalidAnswer, ScoringFailed)


def attempt(
    function: Callable[..., T], *arguments: Any, errors: tuple[type[Exception], ...] = (Exception,)
) -> T | Exception:
    """Return the result of a call, or the exception that it raised, which is recorded and never becomes a score."""
    try:
        return function(*arguments)
    except errors as err:
        return err
