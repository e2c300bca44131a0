"""What happens where a handler cannot do what it was asked: a message for the page, a traceback for the log."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from mmrl.config.section import ConfigError
from mmrl.data.jsonl import DataError
from mmrl.demo.errors import DemoError, told
from mmrl.demo.jobs import Stopped
from mmrl.evaluation.errors import EvaluationError
from mmrl.training.errors import RunError

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
    except (DemoError, DataError, ConfigError, EvaluationError, RunError) as why:
        raise gr.Error(told(why), print_exception=False, title="Not done") from None
    except Exception as why:  # a server's border
        log.exception("a handler of the demo failed")
        text = f"That failed on the server ({type(why).__name__}); its log says more."
        raise gr.Error(text, print_exception=False, title="Not done") from None
