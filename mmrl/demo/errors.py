"""What a visitor is told where something cannot be done: short, and without a folder of the machine."""

from __future__ import annotations

import re

_PATH = re.compile(r"(?:[A-Za-z]:\\|~?/)[^\s'\",:;()]*")
LONGEST = 300


class DemoError(ValueError):
    """A refusal in words that any visitor may read."""


def told(why: BaseException) -> str:
    """The message of an error in one line, in which paths have lost their folders.

    >>> told(OSError("cannot read /home/me/runs/a/config.yaml: no such file"))
    'cannot read config.yaml: no such file'
    """
    text = " ".join(str(why).split()) or type(why).__name__
    text = _PATH.sub(lambda found: re.split(r"[\\/]", found[0].rstrip("/\\"))[-1] or "a file", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
