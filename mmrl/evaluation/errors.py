"""What can be wrong with what is to be evaluated or reported.

EvaluationError(ValueError)
    a folder that is no run, an evaluation that is missing or broken, two evaluations that cannot be compared
ResultError(EvaluationError)
    the results of a comparison that cannot be read, or that have nothing in common with others
"""


class EvaluationError(ValueError):
    """An evaluation that cannot be made, read or compared. The message names the file or folder and what to do."""


class ResultError(EvaluationError):
    """Results of a comparison that cannot be used. The message names the file and what to do."""
