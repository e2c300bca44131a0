"""Silence, lateness and the choice of who writes, from beats alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmrl.distributed.findings import Beat, Members
from mmrl.distributed.member import Member

BEAT = Beat(number=0, phase="rollout", iteration=4, saved=3, run="runs/toy")


def members(hosts: str = "aab", rank: int = 1) -> Members:
    """Return three processes that have sent one beat, as process 1 knows them."""
    known = Members(rank, [Member(host, 10 + n, "", "") for n, host in enumerate(hosts)], silence=5.0, lateness=10.0)
    known.update(dict.fromkeys(range(len(hosts)), BEAT), 1.0, set())
    return known


def others(known: Members) -> list[int]:
    """Return the ranks besides the knowing one."""
    return [rank for rank in range(len(known.members)) if rank != known.rank]


def test_silence_is_counted_in_the_seconds_of_the_one_that_reads() -> None:
    """A beat with the same number does not count as one; after `silence` seconds the process is named."""
    known = members()
    for number in range(1, 6):
        assert known.finding(others(known)) is None
        known.update({1: replace(BEAT, number=number), 0: replace(BEAT, number=number), 2: BEAT}, 1.0, set())
    assert known.finding(others(known)) == (
        "process 2 of 3 (b, pid 12) stopped in phase rollout of iteration 4: it gave no sign of life for 5 s: it is "
        "frozen, or its host cannot be reached; the last checkpoint is of iteration 3; go on with: "
        "mmrl train --resume runs/toy"
    )


def test_a_process_that_left_in_order_is_not_missed() -> None:
    """Its last beat says so, and its end is no loss."""
    known = members()
    known.update({2: replace(BEAT, number=1, left=True)}, 1.0, {2})
    assert known.finding(others(known)) is None
    known.update({0: replace(BEAT, number=1)}, 1.0, {0})
    assert str(known.finding(others(known))).startswith("process 0 of 3 (a, pid 10) stopped")
    assert known.is_alone(others(known))


@pytest.mark.parametrize(("waits", "named"), [((0, 1), "process 2"), ((1,), "process 0"), ((0, 1, 2), "process 0")])
def test_those_that_do_not_wait_are_late(waits: tuple[int, ...], named: str) -> None:
    """Past `lateness` the first process that does not wait is named; if all wait, their calls are."""
    known = members()
    known.update({rank: replace(BEAT, number=1, wait="gather", waited=9.9) for rank in waits}, 1.0, set())
    assert known.finding(others(known)) is None
    known.update({rank: replace(BEAT, number=2, wait="gather", waited=10.0) for rank in waits}, 1.0, set())
    found = str(known.finding(others(known)))
    assert found.startswith(named) and " hangs in phase rollout of iteration 4: " in found
    assert ("all processes wait" in found) == (len(waits) == 3)
    assert ("the same holds for process 2" in found) == (waits == (1,))


@pytest.mark.parametrize(
    ("hosts", "has_zero", "silent", "speaker"),
    [
        ("aaa", False, (), 1),  # process 0 held the store
        ("aaa", True, (), 0),  # torchrun held it
        ("aab", False, (), 2),  # host a may be lost as a whole
        ("aab", False, (2,), 1),
        ("aaa", False, (1,), 2),
    ],
)
def test_without_the_store_one_process_writes(
    hosts: str, has_zero: bool, silent: tuple[int, ...], speaker: int
) -> None:
    """All processes that live choose the same one."""
    for rank in {1, 2}.difference(silent):
        known = members(hosts, rank)
        beats = {each: replace(BEAT, number=1) for each in range(3) if each not in silent}
        known.update(beats | dict.fromkeys(silent, BEAT), 5.0, set())
        assert known.speaker(has_zero, known.members[rank]) == speaker
