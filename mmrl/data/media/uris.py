"""Media inside a data file itself, as data URIs (RFC 2397): `data:image/png;base64,iVBORw0...`.

A picture, a GIF or an MP4 may stand wherever a path may, so that a data set can be one file.
"""

from __future__ import annotations

import base64
import binascii
import re
from io import BytesIO
from pathlib import Path

_HEAD = re.compile(r"data:(?P<kind>[a-z]+/[a-z0-9.+-]+)?(?P<options>(?:;[^;,]*)*),", re.IGNORECASE)
_LONGEST_HEAD = 200  # characters of a URI that are looked at for its kind


def is_data_uri(reference: str) -> bool:
    """Whether a medium stands in the text itself rather than in a file.

    >>> [is_data_uri(each) for each in ("data:image/png;base64,iVBO", "pictures/a.png", "data/a.png")]
    [True, False, False]
    """
    return reference[:5].lower() == "data:"


def data_uri(content: bytes, kind: str) -> str:
    """The bytes of a file as text; `kind` is its media type, as `image/png`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def uri_kind(uri: str) -> str:
    """The media type that a data URI states, in lower case: `image/gif`. Empty where it states none."""
    head = _HEAD.match(uri[:_LONGEST_HEAD])
    return (head["kind"] or "").lower() if head else ""


def uri_bytes(uri: str) -> bytes:
    """The file that a data URI holds.

    Raises:
        ValueError: it is not written as base64, or that is damaged.
    """
    head = _HEAD.match(uri[:_LONGEST_HEAD])
    if head is None or ";base64" not in head["options"].lower():
        raise ValueError("is no data URI in base64: write data:image/png;base64,...")
    try:
        return base64.b64decode(uri[head.end() :], validate=True)
    except binascii.Error as err:
        raise ValueError(f"its base64 is damaged ({str(err).lower()})") from None


def shown(reference: Path | str) -> str:
    """A path as it is; of a data URI its beginning and length, for messages.

    >>> shown("data:image/png;base64," + "A" * 4000)
    'data:image/png;base64,... (4022 characters)'
    """
    text = str(reference)
    if not is_data_uri(text):
        return text
    head = _HEAD.match(text[:_LONGEST_HEAD])
    return f"{text[: head.end()] if head else 'data:'}... ({len(text)} characters)"


def opened(reference: Path | str) -> Path | BytesIO:
    """What a decoder opens: the path of a file, or the bytes of a data URI.

    Raises:
        ValueError: as `uri_bytes`.
    """
    text = str(reference)
    return BytesIO(uri_bytes(text)) if is_data_uri(text) else Path(reference)
