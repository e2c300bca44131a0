"""Tiny pipelines of every kind compute with divided parameters what they compute with whole ones."""

from __future__ import annotations

import pytest

from tests.distributed.calls_in_group import call_in_group

CHECKS = "tests.distributed.pipeline_window_checks"


@pytest.mark.integration
@pytest.mark.parametrize("which", ["daily", pytest.param("representatives", marks=pytest.mark.slow)])
def test_divided_pipelines_compute_what_whole_ones_do(which, fork_server, tmp_path):
    for everyone in call_in_group(fork_server, tmp_path / "group", 2, f"{CHECKS}:compare_{which}"):
        for name, found in everyone.items():
            print(name, found)
            assert found["rollout"] == found["replay_gap"] == 0, name
            assert found["gradients"] <= 1e-6, name
