"""The guesses of speculative decoding are counted over all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrl.distributed import processes
from mmrl.understanding.speculative_engine import DraftCounts
from tests.distributed.calls_in_group import call_in_group


def metrics_twice(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of guesses that depend on the rank, and those after them."""
    counts = [DraftCounts(8, 2, 5, 7), DraftCounts(2, 1, 3, 4)][processes.rank()]
    return [counts.metrics(), counts.metrics()]


@pytest.mark.integration
def test_shares_are_of_all_guesses(fork_server, tmp_path):
    of_both = {"drafts/accepted": 3 / 10, "drafts/tokens_per_pass": 11 / 8}
    nothing = {"drafts/accepted": 0.0, "drafts/tokens_per_pass": 0.0}
    assert call_in_group(fork_server, tmp_path, 2, f"{__name__}:metrics_twice") == [[of_both, nothing]] * 2
