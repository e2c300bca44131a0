"""Signs of life of two processes through a store of this one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from mmrl.distributed.beats import Beats
from mmrl.distributed.findings import Members
from mmrl.distributed.member import Member
from mmrl.distributed.position import position


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    own, other = socket.socketpair()
    own.setblocking(False)
    with own, other:
        yield own, other


def beats_of(rank: int, store: dist.Store, line: socket.socket, leaves: bool = False) -> tuple[Beats, Members]:
    known = Members(rank, [Member.here()] * 2, silence=3.0, lateness=12.0)
    return Beats(store, line, known, lambda: leaves), known


def test_each_process_knows_the_place_of_the_other_one(line):
    store = dist.HashStore()
    first, known = beats_of(0, store, line[0])
    second, _ = beats_of(1, store, line[0], leaves=True)
    with position.phase("rollout"):
        second.send()
    first.next_round(1.0)
    assert known.beats[1].phase == "rollout" and known.beats[1].left and not known.beats[0].left
    for _ in range(4):
        first.next_round(1.0)
    assert known.ages == {0: 0.0, 1: 4.0}
    assert first.rounds == 5


def test_a_wait_lasts_from_its_first_round_on(line):
    store = dist.HashStore()
    first, known = beats_of(0, store, line[0])
    beats_of(1, store, line[0])[0].send()
    for name in ("gather", "sum"):
        with position.waiting(name):
            found = []
            for _ in range(3):
                first.next_round(1.0)
                found.append((known.beats[0].wait, known.beats[0].waited))
        assert found == [(name, 0.0), (name, 1.0), (name, 2.0)]
    first.next_round(1.0)
    assert (known.beats[0].wait, first.waited) == (None, 0.0)


def test_a_change_of_place_is_sent_once(line):
    store = dist.HashStore()
    first, _ = beats_of(0, store, line[0])
    first.send()
    before = store.get("beat/0")
    store.set("beat/0", "read")
    first.send_change()
    assert store.get("beat/0") == b"read"
    with position.phase("update"):
        first.send_change()
    assert store.get("beat/0") not in (before, b"read")


def test_a_store_that_is_gone_is_noticed_by_the_end_of_its_connection(line):
    first, _ = beats_of(0, dist.HashStore(), line[0])
    first.check_line()
    line[1].close()
    with pytest.raises(ConnectionResetError, match="the store is gone"):
        first.check_line()
