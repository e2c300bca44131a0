"""The errors that a user can act on. Each message names the file, line or key, and says what to do.

    ConfigError(ValueError)         a recipe or command line that cannot be run
    DataError(ValueError)           a data set or media file that cannot be read
    EvaluationError(ValueError)     an evaluation that cannot be made, read or compared
    └── ResultError                 a comparison's results that cannot be used
    RunError(RuntimeError)          a run that must not go on
    └── RunStopped                  a run that was stopped on request; it can be resumed
    GenerationError(RuntimeError)   a pipeline with behaviour that is not supported
    ├── ReplayError                 a replay that left the path of its rollout
    └── UnsupportedError            a pipeline, scheduler or argument that cannot be a policy
        └── CallRefused             arguments that the pipeline's own checks refuse

The errors of rewards are defined in `mmrl.rewards`, which is used without the rest of mmrl.
"""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be run. The message names the key and says what to do."""


class DataError(ValueError):
    """A data set or media file that cannot be read. The message names the file and line."""


class EvaluationError(ValueError):
    """An evaluation that cannot be made, read or compared. The message names the file or folder and what to do."""


class ResultError(EvaluationError):
    """Results of a comparison that cannot be used. The message names the file and what to do."""


class RunError(RuntimeError):
    """A run that must not go on. The message says what was seen and what to do; finished work is kept."""


class RunStopped(RunError):
    """A run that was stopped on request. Its progress is saved; the message says how to resume it."""


class GenerationError(RuntimeError):
    """A pipeline whose behaviour is not supported."""


class ReplayError(GenerationError):
    """A replay that differs from its rollout: training on it would use numbers that were never sampled."""


class UnsupportedError(GenerationError):
    """A pipeline, scheduler or argument that cannot be a policy."""


class CallRefused(UnsupportedError):
    """Arguments that the pipeline's own checks refuse, such as a size, or a picture that is missing."""
