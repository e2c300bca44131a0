"""What can be wrong with what is to be evaluated or reported.

EvaluationError(ValueError)
    a folder that is no run, an evaluation that is missing or broken, two evaluations that cannot be compared
"""


class EvaluationError(ValueError):
    """An evaluation that cannot be made, read or compared. The message names the file or folder and what to do."""
