"""What a visitor is told where something cannot be done: short, and without a folder of the machine."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from mmrl.errors import ConfigError, DataError, EvaluationError, RunError

_PATH = re.compile(r"(?:[A-Za-z]:\\|~?/)[^\s'\",:;()]*")
LONGEST = 300


class DemoError(ValueError):
    """A refusal in words that any visitor may read."""


class Stopped(Exception):
    """Somebody asked for it. No failure."""


def told(why: BaseException) -> str:
    """The message of an error in one line, in which paths have lost their folders.

    >>> told(OSError("cannot read /home/me/runs/a/config.yaml: no such file"))
    'cannot read config.yaml: no such file'
    """
    text = " ".join(str(why).split()) or type(why).__name__
    text = _PATH.sub(lambda found: re.split(r"[\\/]", found[0].rstrip("/\\"))[-1] or "a file", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# What happens where a handler cannot do what it was asked: a message for the page, a traceback for the log.


log = logging.getLogger(__name__)


def guarded(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, whose errors become a message that names no folder."""
    if inspect.isgeneratorfunction(handler):

        @functools.wraps(handler)
        def each(*args: Any, **kwargs: Any) -> Any:
            with _told():
                yield from handler(*args, **kwargs)

        return each

    @functools.wraps(handler)
    def once(*args: Any, **kwargs: Any) -> Any:
        with _told():
            return handler(*args, **kwargs)

    return once


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except gr.Error:
        raise
    except Stopped:
        raise gr.Error("Stopped.", print_exception=False, title="Cancel", duration=3) from None
    except (DemoError, DataError, ConfigError, EvaluationError, RunError) as err:
        raise gr.Error(told(err), print_exception=False, title="Not done") from None
    except Exception as err:  # a server's border
        log.exception("a handler of the demo failed")
        text = f"That failed on the server ({type(err).__name__}); its log says more."
        raise gr.Error(text, print_exception=False, title="Not done") from None
