"""Errors of the demo: messages that any user may read, short and without folders of the server."""

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

log = logging.getLogger(__name__)


class DemoError(ValueError):
    """An error whose message any user may read."""


class Stopped(Exception):
    """The user cancelled the work. No failure."""


def error_text(error: BaseException) -> str:
    """Return the message of an error in one line, with paths reduced to their last part.

    >>> error_text(OSError("cannot read /home/me/runs/a/config.yaml: no such file"))
    'cannot read config.yaml: no such file'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    text = _PATH.sub(lambda found: re.split(r"[\\/]", found[0].rstrip("/\\"))[-1] or "a file", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def with_error_messages(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Gradio handler with its errors turned into messages that name no folder."""
    if inspect.isgeneratorfunction(handler):

        @functools.wraps(handler)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with _messages():
                yield from handler(*args, **kwargs)

        return generator

    return _messages()(handler)


@contextmanager
def _messages() -> Iterator[None]:
    try:
        yield
    except gr.Error:
        raise
    except Stopped:
        raise gr.Error("Stopped.", print_exception=False, title="Cancel", duration=3) from None
    except (DemoError, DataError, ConfigError, EvaluationError, RunError) as err:
        raise gr.Error(error_text(err), print_exception=False, title="Not done") from None
    except Exception as err:  # a server's border
        log.exception("a handler of the demo failed")
        text = f"That failed on the server ({type(err).__name__}); its log says more."
        raise gr.Error(text, print_exception=False, title="Not done") from None
