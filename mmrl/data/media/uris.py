"""Data URIs (RFC 2397): media inside a data file, such as `data:image/png;base64,iVBORw0...`.

A data URI is allowed wherever a path is, so a data set can be a single file.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image

_HEAD = re.compile(r"data:(?P<kind>[a-z]+/[a-z0-9.+-]+)?(?P<options>(?:;[^;,]*)*),", re.IGNORECASE)
_MAX_HEAD = 200  # characters of a URI that are searched for its media type
_paths_refused = False


def is_data_uri(reference: str) -> bool:
    """Return True for a data URI, False for a path.

    >>> [is_data_uri(each) for each in ("data:image/png;base64,iVBO", "pictures/a.png", "data/a.png")]
    [True, False, False]
    """
    return reference[:5].lower() == "data:"


def data_uri(content: bytes, kind: str) -> str:
    """Return the data URI of the bytes of a file; `kind` is its media type, such as `image/png`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def png_uri(picture: Image.Image) -> str:
    """Return a picture as the data URI of a PNG."""
    buffer = BytesIO()
    picture.save(buffer, "PNG")
    return data_uri(buffer.getvalue(), "image/png")


def uri_kind(uri: str) -> str:
    """Return the media type of a data URI in lower case, such as `image/gif`; empty if it states none."""
    head = _HEAD.match(uri[:_MAX_HEAD])
    return (head["kind"] or "").lower() if head else ""


def uri_bytes(uri: str) -> bytes:
    """Return the bytes of a data URI.

    Raises:
        ValueError: it is not base64, or the base64 is damaged.
    """
    head = _HEAD.match(uri[:_MAX_HEAD])
    if head is None or ";base64" not in head["options"].lower():
        raise ValueError("is no data URI in base64: write data:image/png;base64,...")
    try:
        return base64.b64decode(uri[head.end() :], validate=True)
    except binascii.Error as err:
        raise ValueError(f"its base64 is damaged ({str(err).lower()})") from None


def describe_reference(reference: Path | str) -> str:
    """Return a path, or the beginning and length of a data URI, for messages.

    >>> describe_reference("data:image/png;base64," + "A" * 4000)
    'data:image/png;base64,... (4022 characters)'
    """
    text = str(reference)
    if not is_data_uri(text):
        return text
    head = _HEAD.match(text[:_MAX_HEAD])
    return f"{text[: head.end()] if head else 'data:'}... ({len(text)} characters)"


@contextmanager
def paths_refused() -> Iterator[None]:
    """Let no thread of this process open a path of media: a service must not read files that its clients name."""
    global _paths_refused
    before, _paths_refused = _paths_refused, True
    try:
        yield
    finally:
        _paths_refused = before


def media_source(reference: Path | str) -> Path | BytesIO:
    """Return the object that a decoder opens: the path of a file, or the bytes of a data URI.

    Raises:
        ValueError: see `uri_bytes`; or it is a path inside `paths_refused`.
    """
    text = str(reference)
    if is_data_uri(text):
        return BytesIO(uri_bytes(text))
    if _paths_refused:
        raise ValueError("is a path: a service opens no files that a client names; send a data URI")
    return Path(reference)
