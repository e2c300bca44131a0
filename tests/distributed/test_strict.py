"""Policies whose parameters are never whole: rollouts, copies, gradients and files as those of whole ones."""

from __future__ import annotations

import pytest

from tests.distributed.calls_in_group import call_in_group


@pytest.mark.slow
@pytest.mark.parametrize(("size", "per_node"), [(2, 2), (4, 2)])
def test_policies_that_gather_in_each_call_compute_what_whole_ones_do(size, per_node, fork_server, tmp_path):
    for found in call_in_group(fork_server, tmp_path, size, "tests.distributed.strict_checks:compare", per_node):
        for case, each in found.items():
            for name in ("rollout", "rollout_old", "rollout_reference", "rollout_after", "loaded"):
                assert each[name] == 0, name
            # In bfloat16, identities at the inputs of a whole model's blocks move gradients as far (2 %).
            assert each["gradients"] <= (5e-2 if case == "bfloat16" else 1e-6) * each["largest_gradient"]
            # The forward pass, and the backward pass again; no call that a replay skips gathers anything.
            assert each["gathers"] == 2 * each["blocks"] * each["steps"]
            assert each["gathers_of_one_step"] == 2 * each["blocks"]
