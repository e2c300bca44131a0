"""Two processes give rows the starts, advantages and metrics that one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrl.distributed import processes
from mmrl.training.rollouts.hint_rules import KnowledgePoints, SolutionHints
from tests.distributed.calls_in_group import call_in_group
from tests.training.rollouts.test_hint_rules import NeedsHints, started
from tests.training.token_run import collect

RULES = {
    "hints": SolutionHints(place="prefix"),
    "points": KnowledgePoints(sizes=(1, 2), subsets=2, place="prefix", join=" "),
}


def collect_twice(folder: Path) -> dict[str, Any]:
    """Return what each rule gives in two iterations: metrics, and label and advantage of each row."""
    found: dict[str, Any] = {}
    for name, rule in RULES.items():
        source = started(rule, NeedsHints(needs=2, solved=("s0", "s1")))
        iterations = [collect(source, number) for number in range(2)]
        batches = [batch for each in iterations for batch in each.micro_batches]
        found[name] = {
            "metrics": [each.metrics for each in iterations],
            "prefixes": [s and s.prefix for b in batches for s in b.rollout.starts or [None] * b.rollout.rows],
            "advantages": [value for batch in batches for value in batch.advantages.tolist()],
            "remote": sum(batch.rollout.remote for batch in batches),
        }
    return {"found": found, "size": processes.size()}


def test_two_processes_agree_with_one(fork_server, tmp_path):
    alone = collect_twice(tmp_path)["found"]
    for each in call_in_group(fork_server, tmp_path, 2, f"{__name__}:collect_twice"):
        assert each["size"] == 2
        for name in RULES:
            ours, theirs = each["found"][name], alone[name]
            assert ours.pop("remote") > 0
            assert ours["prefixes"] == theirs["prefixes"]
            assert ours["advantages"] == pytest.approx(theirs["advantages"])
            for mine, other in zip(ours["metrics"], theirs["metrics"], strict=True):
                assert mine == pytest.approx(other, nan_ok=True)
