"""Processes that all have the whole model: sums of gradients, and parameters that must stay equal."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from mmrl.distributed import processes
from mmrl.distributed.gradients import check_replicas, sum_gradients
from mmrl.errors import RunError
from tests.distributed.calls_in_group import call_in_group


def compare(folder: Path) -> dict[str, object]:
    """Gradients that all, one or no process has; then one process changes a parameter."""
    rank = processes.rank()
    everyone, one, none = (nn.Parameter(torch.ones(2)) for _ in range(3))
    everyone.grad = torch.full((2,), 1.0 + rank)
    one.grad = torch.full((2,), 5.0) if rank == 1 else None
    sum_gradients([everyone, one, none])
    found: dict[str, object] = {"everyone": everyone.grad.tolist(), "one": one.grad.tolist(), "none": none.grad}
    check_replicas([everyone, one, none])
    if rank == 2:
        with torch.no_grad():
            one[0] += 1e-6
    try:
        check_replicas([everyone, one, none])
    except RunError as err:
        found["error"] = str(err)
    return found


def test_gradients_are_summed_and_other_parameters_are_noticed(fork_server, tmp_path):
    for found in call_in_group(fork_server, tmp_path / "group", 3, "tests.distributed.test_replicas:compare"):
        assert found["everyone"] == [6.0, 6.0]
        assert found["one"] == [5.0, 5.0]
        assert found["none"] is None
        assert str(found["error"]).startswith("process 2 has other parameters than process 0")
