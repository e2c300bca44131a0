"""Keys of servers: read from an environment variable, and masked in all that a server repeats of them.

key = ApiKey.read("OPENAI_API_KEY")
message = key.mask(reply)[:300]   # masked before it is shortened, else a part of the key would stay
"""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import quote

MIN_LENGTH = 4
"""Characters; a shorter key is a placeholder, and masking it would corrupt numbers and words."""


@dataclass(frozen=True)
class ApiKey:
    """A key, or "" for a server that needs none. It is in no representation and no message."""

    value: str = field(default="", repr=False)

    @classmethod
    def read(cls, variable: str) -> ApiKey:
        """Return the key in an environment variable; an empty one if no variable is named.

        Raises:
            ValueError: the variable is not set, or its value is not valid in a header. The message has no part of it.
        """
        value = os.environ.get(variable, "").strip() if variable else ""
        if variable and not value:
            raise ValueError(f"the environment variable {variable} is not set")
        if not all("!" <= letter <= "~" for letter in value):
            raise ValueError(f"{variable} holds a space, a control character or a non-ASCII character")
        return cls(value)

    def mask(self, text: str) -> str:
        """Replace the key by `***`, also where the text ends in the middle of it."""
        for spelling in self._spellings:
            text = text.replace(spelling, "***")
        for spelling in self._spellings:
            ends = range(len(spelling) - 1, MIN_LENGTH - 1, -1)
            start = next((length for length in ends if text.endswith(spelling[:length])), 0)
            text = text[: len(text) - start] + "***" if start else text
        return text

    @cached_property
    def _spellings(self) -> tuple[str, ...]:
        """The key as it is, and as it is written in JSON, HTML and a URL; the longest first."""
        if len(self.value) < MIN_LENGTH:
            return ()
        quoted = json.dumps(self.value)[1:-1]
        found = {
            self.value,
            quoted,
            quoted.replace("/", "\\/"),
            html.escape(self.value),
            quote(self.value, safe=""),
        }
        return tuple(sorted(found, key=lambda each: (-len(each), each)))
