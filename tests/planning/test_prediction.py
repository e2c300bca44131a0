"""Predicted seconds against closed forms: one device, no exchange, too few calls, each place alone."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from mmrl.planning.assumptions import Assumptions, default_assumptions
from mmrl.planning.prediction import OBJECT_GATHERS, PhaseSeconds, Workload, exchange_seconds, predict

PHASES = PhaseSeconds(rollout=2.0, scoring=0.5, update=3.0, optimizer=0.25, statistics=0.125, check=0.0625)
WORK = Workload(calls=16, rows=4, updates=2, epochs=2)
NOTHING_LOST = Assumptions(bandwidth=100.0, node_bandwidth=10.0, latency=0.0, straggler=0.0)


def test_one_device_computes_every_call_and_exchanges_nothing():
    work = replace(WORK, gradient_bytes=10**9, experience_bytes=10**9)
    alone = predict(PHASES, work, default_assumptions("cpu"), 1)
    assert alone.communication == alone.lateness == 0
    assert alone.total == 16 * 2.0 + 16 * 0.5 + 2 * 16 * 3.0 + 4 * 0.25 + 16 * 0.125 + 0.0625


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_calls_divide_and_repeated_work_does_not(devices):
    found = predict(PHASES, WORK, NOTHING_LOST, devices)
    divided = 16 * 2.0 + 16 * 0.5 + 2 * 16 * 3.0
    assert found.total == pytest.approx(divided / devices + 4 * 0.25 + 16 * 0.125 + 0.0625)


def test_devices_beyond_the_calls_of_an_update_do_not_help():
    """An update has 8 of the 16 calls."""
    assert predict(PHASES, WORK, NOTHING_LOST, 8).update == 2 * 2 * 3.0
    limit = predict(PHASES, WORK, NOTHING_LOST, 16)
    assert limit.rollout == 2.0 and limit.update == 2 * 2 * 3.0
    assert predict(PHASES, WORK, NOTHING_LOST, 1024) == limit


def test_an_uneven_share_lasts_as_long_as_the_largest():
    work = Workload(calls=10, rows=1)
    assert [predict(PHASES, work, NOTHING_LOST, devices).rollout / 2.0 for devices in (3, 4, 6, 9)] == [4, 3, 2, 2]


def test_calls_of_a_group_stay_together():
    work = Workload(calls=12, rows=1, calls_together=3)
    assert work.units == 4
    assert [work.busiest(0, 12, devices) for devices in (1, 2, 3, 4, 100)] == [12, 6, 6, 3, 3]


def test_dealing_is_that_of_the_collector(monkeypatch):
    from mmrl.distributed import processes
    from mmrl.training.rollouts.exchange import deal

    groups = [{number // 3} for number in range(11)]
    for devices in (1, 2, 3, 5):
        monkeypatch.setattr(processes, "size", lambda count=devices: count)
        for whole, together in ((False, 1), (True, 3)):
            ranks = deal(groups, whole)
            work = Workload(calls=11, rows=1, calls_together=together)
            assert work.busiest(0, 11, devices) == max(ranks.count(rank) for rank in range(devices))


def test_scoring_is_hidden_but_for_the_last_call():
    hidden = replace(NOTHING_LOST, scoring_overlap=1.0)
    assert predict(PHASES, WORK, hidden, 1).scoring == 0.5
    assert predict(PHASES, WORK, NOTHING_LOST, 1).scoring == 8.0


# exchange, with 100 GB/s in a node and 10 GB/s between nodes


def test_replicas_add_up_gradients_once_an_update():
    work = replace(WORK, gradient_bytes=10**9)
    one = exchange_seconds(work, NOTHING_LOST, 4, "replicas")
    assert one == pytest.approx(4 * 2 * 3 / 4 * 1e9 / 100e9)
    many = exchange_seconds(work, NOTHING_LOST, 1024, "replicas")
    assert many == pytest.approx(4 * 2 * 1023 / 1024 * 1e9 / 10e9)


def test_window_gathers_once_a_phase():
    work = replace(WORK, gradient_bytes=10**9, placed_bytes=2 * 10**9, copy_bytes=10**9)
    found = exchange_seconds(work, NOTHING_LOST, 8, "window")
    assert found == pytest.approx(7 / 8 * (5 * 3e9 + 4 * 1e9) / 100e9)
    more_calls = replace(work, calls=64)
    assert exchange_seconds(more_calls, NOTHING_LOST, 8, "window") == pytest.approx(found)


def test_window_on_several_nodes_gathers_within_one_and_adds_up_between_them():
    work = replace(WORK, gradient_bytes=10**9, placed_bytes=2 * 10**9)
    found = exchange_seconds(work, NOTHING_LOST, 32, "window")
    assert found == pytest.approx(7 / 8 * (5 * 2e9 + 4 * 1e9) / 100e9 + 4 * 2 * 3 / 4 * 1e9 / 10e9)


def test_strict_gathers_in_every_call():
    work = replace(
        WORK, gradient_bytes=10**9, placed_bytes=2 * 10**9, rollout_forwards=10, update_forwards=1, update_backwards=3
    )
    found = exchange_seconds(work, NOTHING_LOST, 8, "strict")
    gather, sums = 7 / 8 * 2e9 / 100e9, 7 / 8 * 1e9 / 100e9
    assert found == pytest.approx(2 * 10 * gather + 4 * ((1 + 2 * 3) * gather + 3 * sums))
    hidden = replace(NOTHING_LOST, overlap=1.0)
    assert exchange_seconds(work, hidden, 8, "strict") == 0


def test_latency_counts_rounds_and_blocks():
    slow = replace(NOTHING_LOST, latency=1.0)
    assert slow.gather_seconds(0, 8) == 3.0
    assert slow.all_reduce_seconds(0, 1000) == 20.0
    work = Workload(calls=1, rows=1, blocks=5, rollout_forwards=2)
    assert exchange_seconds(work, slow, 8, "strict") == 3.0 * (2 * OBJECT_GATHERS + 2 * 5)


def test_divided_parameters_divide_the_optimizer_and_replicas_do_not():
    assert predict(PHASES, WORK, NOTHING_LOST, 4, "window").optimizer == 4 * 0.25 / 4
    assert predict(PHASES, WORK, NOTHING_LOST, 32, "window").optimizer == 4 * 0.25 / 8
    assert predict(PHASES, WORK, NOTHING_LOST, 32, "replicas").optimizer == 4 * 0.25


def test_lateness_is_the_expected_maximum_of_gaussians():
    """The exact values are 1 / sqrt(pi) for 2, 3 / (2 sqrt(pi)) for 3, and 2.0428 for 32."""
    late = Assumptions(bandwidth=1.0, node_bandwidth=1.0, latency=0.0, straggler=0.1)
    assert late.lateness(2.0, 4, 1) == 0
    for count, exact in ((2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (32, 2.0428)):
        assert late.lateness(2.0, 4, count) == pytest.approx(0.1 * 2.0 * 2 * exact, rel=0.06)
    assert predict(PHASES, WORK, replace(NOTHING_LOST, straggler=0.1), 4).lateness > 0


@pytest.mark.parametrize("change", [{"bandwidth": 0.0}, {"node_size": 0}, {"overlap": 1.1}, {"straggler": -0.1}])
def test_impossible_assumptions_are_refused(change):
    with pytest.raises(ValueError):
        replace(NOTHING_LOST, **change)


def test_arithmetic_needs_no_torch():
    code = "import sys, mmrl.planning.placement; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
