"""Tiny pipelines of transformers that predict noise, as data."""

from __future__ import annotations

from tiny.factory import Tiny

PIPELINES: dict[str, Tiny] = {}
