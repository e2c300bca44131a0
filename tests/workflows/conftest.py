"""Runs that several tests read, and none writes into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflows.compared_runs import DRAWING, LOOKING, REWARDED, make_run


@pytest.fixture(scope="session")
def drawing_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator with adapters: checkpoints 4 (the best) and 6."""
    return make_run(tmp_path_factory.mktemp("runs") / "drawing", DRAWING | REWARDED)


@pytest.fixture(scope="session")
def looking_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision-language model with adapters: one checkpoint, 4."""
    return make_run(tmp_path_factory.mktemp("runs") / "looking", LOOKING, steps=[4])
