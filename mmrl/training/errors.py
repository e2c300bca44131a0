"""Reasons for which a run stops."""


class RunError(RuntimeError):
    """A run that must not go on. The message says what was seen and what to do; finished work is kept."""
