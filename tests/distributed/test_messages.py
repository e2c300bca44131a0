"""Messages between processes: what is sent arrives, at any length."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.distributed import processes
from mmrl.distributed.messages import HEAD, pack, unpack
from tests.distributed.calls_in_group import call_in_group

LENGTHS = (0, 1, HEAD - 8 - 20, HEAD, 3 * HEAD, 100_000)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3).T,
        torch.tensor([True, False]),
        torch.tensor(0.5, dtype=torch.float16),
        torch.tensor([1.5, torch.nan], dtype=torch.bfloat16),
        torch.empty(0, 3),
        nn.Parameter(torch.ones(2)),
    ],
)
def test_a_tensor_comes_back_as_it_was(tensor):
    (found,) = unpack(pack([tensor]))
    assert type(found) is type(tensor) and found.dtype is tensor.dtype and found.shape == tensor.shape
    assert torch.equal(found.isnan(), tensor.isnan())
    assert torch.equal(found.nan_to_num(), tensor.nan_to_num())
    assert found.requires_grad == tensor.requires_grad
    if found.numel() and not found.requires_grad:
        found.fill_(1)  # the memory is its own


def test_a_view_is_sent_without_the_memory_that_it_is_a_part_of():
    view = torch.zeros(1_000_000)[:10]
    assert len(pack(view)) < 1000
    assert len(pickle.dumps(view)) > 1_000_000


def exchange(folder: Path) -> dict[str, Any]:
    """Messages of every length, from one process or from all of them; then the same from a thread's group."""
    rank, count = processes.rank(), processes.size()
    one = [processes.gather("x" * length if rank == 1 else rank) for length in LENGTHS]
    everyone = [processes.gather((rank, "y" * (length + 10 * rank))) for length in LENGTHS]
    with processes.thread_group(processes.new_group()):
        apart = processes.gather(torch.full((400,), float(rank)))
    return {
        "one": one == [["x" * length if other == 1 else other for other in range(count)] for length in LENGTHS],
        "everyone": everyone == [[(r, "y" * (length + 10 * r)) for r in range(count)] for length in LENGTHS],
        "apart": [each.unique().tolist() for each in apart],
        "largest": [processes.largest(float(rank)), str(processes.largest(float("nan") if rank else 0.0))],
    }


def test_processes_exchange_messages_of_any_length(fork_server, tmp_path):
    for found in call_in_group(fork_server, tmp_path / "group", 3, "tests.distributed.test_messages:exchange"):
        assert found == {"one": True, "everyone": True, "apart": [[0.0], [1.0], [2.0]], "largest": [2.0, "nan"]}
