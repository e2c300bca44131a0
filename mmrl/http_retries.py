"""Responses of servers that may answer the same request later."""

from __future__ import annotations

_TRANSIENT = (408, 409, 425, 429)


def is_transient(status: int) -> bool:
    """Return True for an HTTP status after which the same request may succeed: 408, 409, 425, 429 and from 500 on."""
    return status in _TRANSIENT or status >= 500


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds of a `retry-after` header; None for its other form, a date, and without one."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
