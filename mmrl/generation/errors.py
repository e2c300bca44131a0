"""Why a pipeline cannot be a policy, or a replay cannot be trusted.

    GenerationError(RuntimeError)
    ├── TapeError         a replay left the path of its rollout
    └── UnsupportedError  this pipeline, scheduler or argument cannot work, and why

What the user configured wrongly is a `mmrl.config.ConfigError` instead.
"""

from __future__ import annotations


class GenerationError(RuntimeError):
    """A pipeline did something that this package cannot follow."""


class TapeError(GenerationError):
    """A replay left the path of its rollout: going on would train on numbers that were never sampled."""


class UnsupportedError(GenerationError):
    """A pipeline or scheduler that cannot be a policy. Refused, never trained wrongly."""
