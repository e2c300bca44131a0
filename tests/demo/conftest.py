"""Fixtures: a run with two checkpoints, and its columns, for all tests that sample images."""

import pytest

from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.scores import DemoScorer
from mmrl.training.run.run_folder import load_run
from tests.demo.demo_runs import make_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("demo") / "drawn" / "seed-0")


@pytest.fixture(scope="session")
def columns(run):
    return CheckpointColumns([str(run)])


@pytest.fixture(scope="session")
def scorer(run):
    return DemoScorer([load_run(run).config])
