"""Threads that come with work, go without it, and are never waited for."""

import threading
import time

import pytest

from mmrl.rewards.core import executor
from mmrl.rewards.core.executor import DaemonPool


def threads_of(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_calls_run_concurrently_and_exceptions_propagate():
    pool, together = DaemonPool(3, "trio"), threading.Barrier(3)
    futures = [pool.submit(lambda: together.wait(60)) for _ in range(3)]
    assert sorted(future.result(60) for future in futures) == [0, 1, 2]
    assert len(threads_of("trio")) == 3 and all(thread.daemon for thread in threads_of("trio"))
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(60)
    assert [pool.submit(lambda n=n: n).result(60) for n in range(50)] == list(range(50))
    assert len(threads_of("trio")) == 3


def test_sequential_calls_share_one_thread():
    pool = DaemonPool(8, "solo")
    for _ in range(20):
        pool.submit(lambda: None).result(60)
        deadline = time.monotonic() + 60
        while not pool._idle and time.monotonic() < deadline:  # until the thread is free again
            time.sleep(0.001)
    assert len(threads_of("solo")) == 1


def test_idle_threads_end_and_new_work_starts_new_ones(monkeypatch):
    monkeypatch.setattr(executor, "IDLE_S", 0.05)
    pool = DaemonPool(2, "brief")
    for _ in range(3):
        assert pool.submit(lambda: 7).result(60) == 7
        deadline = time.monotonic() + 60
        while threads_of("brief") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not threads_of("brief")


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("calls", [1, 3, 9])
def test_no_call_is_lost_while_threads_start_and_end(size, calls, monkeypatch):
    """With more calls than threads too: those that waited must not make the pool believe in idle threads."""
    monkeypatch.setattr(executor, "IDLE_S", 0.001)
    pool = DaemonPool(size, "restless")
    for round_ in range(40):
        futures = [pool.submit(lambda n=n: n) for n in range(calls)]
        assert [future.result(60) for future in futures] == list(range(calls))
        time.sleep(0.005 * (round_ % 3))
        assert pool.submit(lambda: "alone").result(60) == "alone"
        time.sleep(0.005 * (round_ % 2))


def test_no_call_is_lost_under_concurrent_submission(monkeypatch):
    monkeypatch.setattr(executor, "IDLE_S", 0.0005)
    pool, found = DaemonPool(3, "busy"), []

    def ask():
        for n in range(300):
            found.append(pool.submit(lambda n=n: n).result(60))

    askers = [threading.Thread(target=ask) for _ in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(60)
    assert sorted(found) == sorted(list(range(300)) * 6)


def test_close_cancels_pending_calls():
    pool, begun, go = DaemonPool(1, "shut"), threading.Event(), threading.Event()

    def hold():
        begun.set()
        return go.wait(60)

    first, second = pool.submit(hold), pool.submit(lambda: None)
    assert begun.wait(60)
    pool.close()
    go.set()
    assert first.result(60) is True and second.cancelled()
    with pytest.raises(RuntimeError, match="shut is closed"):
        pool.submit(lambda: None)
