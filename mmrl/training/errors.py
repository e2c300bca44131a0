"""Reasons for which a run stops."""


class RunError(RuntimeError):
    """A run that must not go on. The message says what was seen and what to do; finished work is kept."""


class RunStopped(RunError):
    """A run that was asked to stop. What it had done is saved; the message says how to go on."""
