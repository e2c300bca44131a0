"""Parameters that are divided over two processes: everything is as it is in one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.calls_in_group import call_in_group
from tests.distributed.window_checks import CASES, DAILY

CHECKS = "tests.distributed.window_checks"
TO_THE_BIT = (
    *("parameters", "rollout", "replay_gap", "gradients_uneven", "gradients_none", "loaded"),
    *("rollout_old", "rollout_reference", "rollout_average", "rollout_after", "rollout_loaded"),
)
ROUNDED = "gradients", "updated", "resumed_by_one", "resumed_by_two"
"""Sums over processes, which are added in another order."""


@pytest.fixture(scope="module")
def daily(fork_server, tmp_path_factory) -> list[dict[str, dict[str, float]]]:
    """The differences of some cases, as each process found them."""
    return call_in_group(fork_server, tmp_path_factory.mktemp("daily"), 2, f"{CHECKS}:compare_daily")


def expect_equal(found: dict[str, Any]) -> None:
    """Everything is equal, or up to rounding where gradients are summed."""
    for name in TO_THE_BIT:
        assert found[name] == 0, name
    for name in ROUNDED:
        assert found[name] <= 1e-6, name
    for name in found.keys() & {"call_outside", "state"}:
        assert found[name] == 0, name
    assert found.get("moments", 0.0) <= 1e-6
    assert found["collectives"] == 1.0


@pytest.mark.integration
@pytest.mark.parametrize("case", DAILY)
def test_divided_policies_compute_what_whole_ones_do(case, daily):
    for found in daily:
        expect_equal(found[case])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "per_node"), [(2, 2), (3, 3), (4, 2)])
def test_every_case_with_more_processes_and_nodes(size, per_node, fork_server, tmp_path):
    everyone = call_in_group(fork_server, tmp_path, size, f"{CHECKS}:compare_all", per_node)
    for found in everyone:
        for case in CASES:
            expect_equal(found[case])
