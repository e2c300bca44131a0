"""The run that tests of build share with those of workflows."""

from tests.workflows.conftest import drawing_run

__all__ = ["drawing_run"]
