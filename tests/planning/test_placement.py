"""The place that wins: the fastest that fits, the simplest of equals, and the reasons."""

from __future__ import annotations

from dataclasses import replace

from mmrl.planning.assumptions import Assumptions
from mmrl.planning.placement import device_counts, sweep
from mmrl.planning.prediction import PhaseSeconds, Workload

GIB = 2**30
PHASES = PhaseSeconds(rollout=2.0, scoring=0.5, update=3.0, optimizer=0.0, statistics=0.0, check=0.0)
WORK = Workload(calls=64, rows=4, gradient_bytes=10**9, placed_bytes=10**9, rollout_forwards=10, update_backwards=5)
FABRIC = Assumptions(bandwidth=10.0, node_bandwidth=1.0, latency=0.0, straggler=0.0)


def memory(devices: int, parts: int) -> dict[str, int]:
    return {"replicas": 100 * GIB, "window": 60 * GIB + 40 * GIB // parts, "strict": 10 * GIB + 90 * GIB // parts}


def test_device_counts_end_with_the_largest():
    assert device_counts(1) == [1]
    assert device_counts(8) == [1, 2, 4, 8]
    assert device_counts(1024)[-1] == 1024 and len(device_counts(1024)) == 11


def test_replicas_win_where_everything_fits():
    found = sweep(PHASES, WORK, FABRIC, 8, memory, 200 * GIB)
    assert [each.best.place for each in found] == ["replicas"] * 4
    assert found[0].reason == "one process has everything"
    assert found[3].speedup > 7 and found[3].efficiency > 0.9


def test_the_next_place_wins_where_replicas_do_not_fit():
    found = {each.devices: each for each in sweep(PHASES, WORK, FABRIC, 8, memory, 80 * GIB)}
    assert found[1].best is None and "needs 100 GiB, and a device has 80 GiB" in found[1].reason
    assert found[2].best.place == "strict" or found[2].best.place == "window"
    assert found[8].best.place == "window"
    small = {each.devices: each for each in sweep(PHASES, WORK, FABRIC, 8, memory, 40 * GIB)}
    assert "needs 100 GiB, and a device has 512 MiB" in sweep(PHASES, WORK, FABRIC, 1, memory, GIB // 2)[0].reason
    assert small[8].best.place == "strict" and small[8].reason == "the only place that can be used"


def test_a_place_that_is_refused_never_wins():
    def obstacle_of(place: str, devices: int) -> str | None:
        return "it cannot be divided" if place != "replicas" else None

    found = sweep(PHASES, WORK, FABRIC, 4, memory, 80 * GIB, obstacle_of)
    assert all(each.best is None for each in found)
    assert "window: it cannot be divided" in found[2].reason


def test_the_simplest_of_equals_wins():
    same = replace(WORK, gradient_bytes=0, placed_bytes=0)
    found = sweep(PHASES, same, FABRIC, 4, None, None)
    assert found[2].best.place == "replicas" and found[2].reason == "as fast as window, and simpler"


def test_efficiency_falls_beyond_the_number_of_calls():
    found = {each.devices: each for each in sweep(PHASES, WORK, FABRIC, 256, None, None)}
    assert found[64].speedup > 30
    assert found[256].speedup <= found[64].speedup
    assert found[256].efficiency < found[64].efficiency / 3


def test_a_large_optimizer_is_a_reason_to_divide_it():
    slow = replace(PHASES, optimizer=10.0)
    found = sweep(slow, replace(WORK, gradient_bytes=0, placed_bytes=0), FABRIC, 4, None, None)[-1]
    assert found.best.place == "window"
    found = sweep(slow, replace(WORK, placed_bytes=0, rollout_forwards=0), FABRIC, 4, None, None)[-1]
    assert found.best.place == "window" and found.reason == "strict exchanges more data and takes 7% longer"
