"""Batches, concurrency, retries and deadlines: nothing is lost, and no failure becomes a number."""

import asyncio
import copy
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.rewards import (
    BatchReward,
    GroupReward,
    InvalidAnswer,
    PairReward,
    Reward,
    RewardError,
    RewardInput,
    RewardSuite,
    ScoreCache,
    ScoringFailed,
    Status,
    TooFewScored,
    WeightedReward,
)
from mmrl.rewards.core.cache import Unhashable, digest_of


def rows(*values, group=None):
    return [
        RewardInput(str(i), 0 if group is None else group[i], "p", text=str(value)) for i, value in enumerate(values)
    ]


class Waiting(Reward):
    """Takes its time, as a server does."""

    name, range, concurrency, batch_size = "waiting", (0.0, 100.0), 8, 1

    def __init__(self, seconds=0.05):
        self.seconds, self.running, self.most = seconds, 0, 0
        self.lock = threading.Lock()

    def score_one(self, item):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(self.seconds)
        with self.lock:
            self.running -= 1
        return float(item.text)


class Flaky(Reward):
    """Fails the first `times` times that it sees an answer."""

    name, range, batch_size = "flaky", (0.0, 100.0), 4

    def __init__(self, times=1, kind="http_503", transient=True):
        self.times, self.kind, self.fleeting, self.seen = times, kind, transient, {}

    def score_one(self, item):
        self.seen[item.id] = self.seen.get(item.id, 0) + 1
        if self.seen[item.id] <= self.times:
            raise ScoringFailed("busy", self.kind, self.fleeting)
        return float(item.text)


def test_server_calls_run_concurrently_in_order():
    class Together(Waiting):
        """Returns once eight calls are concurrent."""

        name, together = "together", threading.Barrier(8)

        def score_one(self, item):
            self.together.wait(60)
            return super().score_one(item)

    reward = Together(0.01)
    output = RewardSuite([(reward, 1.0)]).score(rows(*range(16)))
    assert output.values["together"].tolist() == list(range(16))
    assert reward.most <= 8


def test_scores_are_computed_in_the_background():
    class Blocked(Waiting):
        """Waits until it is let go."""

        name, go = "held", threading.Event()

        def score_one(self, item):
            assert self.go.wait(60)
            return float(item.text)

    suite = RewardSuite([(Blocked(), 1.0)])
    first, second = suite.submit(rows(1, 2)), suite.submit(rows(3))
    Blocked.go.set()  # the caller has gone on
    assert suite.join([first, second]).values["total"].tolist() == [1, 2, 3]
    assert first.result().values["total"].tolist() == [1, 2]
    assert asyncio.run(suite.ascore(rows(5))).values["total"].tolist() == [5]


@pytest.mark.parametrize("batch_size, sizes", [(None, [7]), (3, [3, 3, 1])])
def test_batch_rewards_get_their_batch_size(batch_size, sizes):
    seen = []

    class Batched(BatchReward):
        name, range = "batched", (0.0, 100.0)

        def score_batch(self, items):
            seen.append(len(items))
            return [float(item.text) for item in items]

    output = RewardSuite([WeightedReward(Batched(), batch_size=batch_size)]).score(rows(*range(7)))
    assert seen == sizes and output.values["batched"].tolist() == list(range(7))


def test_answers_that_break_a_batch_fail_alone():
    class Fragile(BatchReward):
        name, range = "fragile", (-1.0, 100.0)

        def score_batch(self, items):
            if any(item.text == "bomb" for item in items):
                raise MemoryError("too large")
            return [InvalidAnswer("no") if item.text == "garbage" else float(item.text) for item in items]

    output = Fragile().score(rows(1, "bomb", "garbage", 4))
    assert output.status["fragile"] == [Status.OK, Status.ERROR, Status.INVALID, Status.OK]
    np.testing.assert_array_equal(output.values["fragile"], np.float32([1, np.nan, -1, 4]))
    with pytest.raises(InvalidAnswer):
        Fragile().score_one(rows("garbage")[0])


def test_transient_failures_are_retried_for_their_rows_only():
    reward = Flaky(times=2)
    reward.seen["0"] = 9
    suite = RewardSuite([WeightedReward(reward, retries=2, pause_s=0.01)])
    output = suite.score(rows(1, 2, 3))
    assert output.values["total"].tolist() == [1, 2, 3] and suite.failures(output) == {}
    assert reward.seen == {"0": 10, "1": 3, "2": 3}


@pytest.mark.parametrize("transient, retries, calls", [(True, 2, 3), (True, 0, 1), (False, 5, 1)])
def test_permanent_failures_are_counted_by_kind_and_not_scored_zero(transient, retries, calls):
    reward = Flaky(times=99, transient=transient)
    suite = RewardSuite([WeightedReward(reward, retries=retries, pause_s=0.001)], min_valid_share=0.5)
    output = suite.score(rows(1, 2))
    assert np.isnan(output.values["total"]).all() and suite.failures(output) == {"flaky": {"http_503": 2}}
    assert set(reward.seen.values()) == {calls}
    with pytest.raises(
        TooFewScored, match=r"only 0% .* failures by kind: \{'flaky': \{'http_503': 2\}\}; reasons: busy"
    ):
        suite.check_valid_share(output)


def test_retry_after_is_respected():
    class Limited(Reward):
        name, range, calls = "limited", (0.0, 1.0), 0

        def score_one(self, item):
            Limited.calls += 1
            if Limited.calls == 1:
                raise ScoringFailed("slow down", "http_429", transient=True, retry_after_s=0.3)
            return 1.0

    started = time.perf_counter()
    assert RewardSuite([WeightedReward(Limited(), pause_s=0.0)]).score(rows(1)).values["total"].tolist() == [1.0]
    assert time.perf_counter() - started >= 0.3


def test_hanging_calls_time_out_at_their_deadline():
    go = threading.Event()

    class Hanging(Reward):
        name, range, batch_size = "hanging", (0.0, 100.0), 1

        def score_one(self, item):
            if item.text == "hang":
                go.wait(60)
            return float(item.text) if item.text != "hang" else 0.0

    suite = RewardSuite([WeightedReward(Hanging(), deadline_s=1, retries=0)])
    output = suite.score(rows(1, "hang", 3))  # while it hangs
    go.set()
    assert output.status["total"] == [Status.OK, Status.TIMEOUT, Status.OK]
    np.testing.assert_array_equal(output.values["total"], np.float32([1, np.nan, 3]))
    assert suite.failures(output) == {"hanging": {"timeout": 1}}


def test_timed_out_calls_are_not_repeated():
    calls, go = [], threading.Event()

    class Slow(Reward):
        name, range = "slow", (0.0, 1.0)

        def score_one(self, item):
            calls.append(item.id)
            go.wait(60)
            return 1.0

    output = RewardSuite([WeightedReward(Slow(), deadline_s=0.5, retries=3, pause_s=0.0)]).score(rows(1))
    go.set()
    assert output.status["total"] == [Status.TIMEOUT] and calls == ["0"]


@pytest.mark.integration
def test_threads_do_not_block_program_exit():
    code = """
import time
from mmrl.rewards import Reward, RewardInput, RewardSuite
class Forever(Reward):
    name, range = "forever", (0.0, 1.0)
    def score_one(self, item):
        time.sleep(600)
        return 1.0
RewardSuite([(Forever(), 1.0)]).submit([RewardInput(str(i), 0, "") for i in range(5)])
time.sleep(0.2)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_closed_suites_score_no_more():
    class Begun(Waiting):
        """Sets an event when it is called."""

        name, requested = "begun", threading.Event()

        def score_one(self, item):
            self.requested.set()
            return super().score_one(item)

    suite = RewardSuite([(Begun(), 1.0)])
    begun = suite.submit(rows(1))
    assert Begun.requested.wait(60)
    suite.close()
    assert begun.result().values["total"].tolist() == [1]
    with pytest.raises(RuntimeError, match="rewards is closed"):
        suite.submit(rows(1))


class Spread(GroupReward):
    """The distance of an answer from the mean of its group."""

    name, range = "spread", (0.0, 100.0)

    def score_group(self, items):
        values = [float(item.text) for item in items]
        return [abs(value - sum(values) / len(values)) for value in values]


class Larger(PairReward):
    """Prefers the larger number, with a position bias."""

    name = "larger"

    def compare(self, first, second):
        if "garbage" in (first.text, second.text):
            raise InvalidAnswer("one of the two is garbage")
        if "broken" in (first.text, second.text):
            raise ScoringFailed("no", "http_500")
        return min(1.0, 0.2 + float(float(first.text) > float(second.text)))


def test_groups_are_scored_whole_in_any_row_order():
    output = RewardSuite([WeightedReward(Spread(), batch_size=1)]).score(rows(0, 10, 4, 30, group=[0, 1, 0, 1]))
    assert output.values["spread"].tolist() == [2, 10, 2, 10]


def test_pairs_are_compared_in_both_orders_without_failed_pairs():
    output = Larger().score(rows(1, 3, 2, "broken", 7, group=[0, 0, 0, 0, 1]))
    assert output.values["larger"][:3].tolist() == pytest.approx([0.1, 0.9, 0.5])
    assert output.status["larger"][3:] == [Status.ERROR] * 2
    assert [row["larger"].kind for row in output.failures[3:]] == ["http_500", "alone"]


def test_malformed_answers_do_not_affect_their_opponent():
    output = Larger().score(rows(3, "garbage"))
    assert output.status["larger"] == [Status.ERROR] * 2 and output.failures[0]["larger"].kind == "pair"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"deadline_s": 0}, "deadline_s is 0; it must be above 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"retries": -1}, "cannot be negative"),
        ({"gate": float("nan")}, "gate is nan"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(RewardError, match=f"waiting: .*{message}"):
        WeightedReward(Waiting(), **settings)


class Counted(Reward):
    """Counts its calls."""

    name, range, calls = "counted", (0.0, 100.0), 0

    def __init__(self, scale=1.0):
        self.scale = scale

    def score_one(self, item):
        Counted.calls += 1
        if item.text == "fail":
            raise ScoringFailed("no", "http_500")
        if item.text == "garbage":
            raise InvalidAnswer("no number")
        return {"counted": self.scale * float(item.text), "counted/half": 0.5}


def test_cache_returns_scores_and_never_failures(tmp_path):
    Counted.calls = 0
    batch = rows(1, "garbage", "fail", 4)
    cache = ScoreCache(tmp_path / "scores.sqlite")
    first = RewardSuite([(Counted(), 1.0)], cache=cache).score(batch)
    again = RewardSuite([(Counted(), 1.0)], cache=ScoreCache(tmp_path / "scores.sqlite")).score(batch)
    assert Counted.calls == 4 + 1  # the failure alone was tried again
    for name in ("counted", "counted/half", "total"):
        np.testing.assert_array_equal(first.values[name], again.values[name])
        assert first.status[name] == again.status[name]
    assert again.detail[1] == {"counted": "no number"}


def test_cache_keys_include_arguments_versions_media_prompts_and_references(tmp_path, monkeypatch):
    Counted.calls = 0
    cache = ScoreCache(tmp_path / "scores.sqlite")
    item = rows(1)[0]
    mask = tmp_path / "mask.png"
    mask.write_bytes(b"one")
    named = replace(item, references={"mask": str(mask)})
    others = [
        item,
        replace(item, prompt="q"),
        replace(item, image=Image.new("RGB", (2, 2))),
        replace(item, image=Image.new("RGB", (2, 2), "red")),
        replace(item, references={"answer": 1}),
        replace(item, references={"answer": "1"}),
        replace(item, references={"answer": [1]}),
        named,
    ]
    RewardSuite([(Counted(), 1.0)], cache=cache).score(others)
    assert Counted.calls == len(others)
    RewardSuite([(Counted(), 1.0)], cache=cache).score([replace(o, id="other", group=7) for o in others])
    assert Counted.calls == len(others)
    mask.write_bytes(b"another")
    RewardSuite([(Counted(), 1.0)], cache=cache).score([named])
    RewardSuite([(Counted(scale=2.0), 1.0)], cache=cache).score([item])
    monkeypatch.setattr(Counted, "version", "2")
    RewardSuite([(Counted(), 1.0)], cache=cache).score([item])
    assert Counted.calls == len(others) + 3


def test_digests_differ_exactly_where_values_do():
    a, b = np.zeros((100, 100)), np.zeros((100, 100))
    b[50, 50] = 1
    clear, white = Image.new("RGBA", (4, 4), (255, 0, 0, 0)), Image.new("RGB", (4, 4), "white")
    red, blue = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    values = [
        {"a": {"b": 1}, "c": 2},
        {"a": {"b": 1, "c": 2}},
        {1: "x", "1": "x"},
        [1, [2]],
        [[1], 2],
        1,
        1.0,
        True,
        "1",
        None,
        a,
        b,
        torch.from_numpy(a),
        torch.from_numpy(b),
        clear,
        white,
        red,
        blue,
        float("nan"),
    ]
    digests = [digest_of(value) for value in values]
    assert len(set(digests)) == len(values)
    assert digests == [digest_of(value) for value in copy.deepcopy(values)]
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_values_without_a_digest_raise():
    endless = []
    endless.append(endless)
    bomb = Image.frombytes("1", (8, 8), bytes(8))
    bomb._size = (60_000, 60_000)
    for value in (object(), {1: object()}, endless, np.array([object()]), torch.zeros(2, dtype=torch.bfloat16), bomb):
        with pytest.raises(Unhashable):
            digest_of(value)


def test_undigestible_answers_and_rewards_are_not_cached(tmp_path, caplog):
    Counted.calls = 0
    cache = ScoreCache(tmp_path / "scores.sqlite")
    item = RewardInput("0", 0, "", text="1", references={"thing": object()})
    for _ in range(2):
        assert RewardSuite([(Counted(), 1.0)], cache=cache).score([item]).values["total"].tolist() == [1.0]
        assert RewardSuite([(Counted(scale=np.array([object()])), 1.0)], cache=cache).score(rows("garbage"))
    assert Counted.calls == 4 and "counted cannot be cached" in caplog.text


def test_broken_caches_lose_no_score(tmp_path, caplog):
    Counted.calls = 0
    cache = ScoreCache(tmp_path / "scores.sqlite")
    suite = RewardSuite([(Counted(), 1.0)], cache=cache)
    cache._file.execute("DROP TABLE scores")
    assert suite.score(rows(1, 2)).values["total"].tolist() == [1, 2]
    assert "cannot be read" in caplog.text and "cannot be written" in caplog.text
    cache._file.execute("CREATE TABLE scores (key BLOB PRIMARY KEY, row TEXT) WITHOUT ROWID")
    for _ in range(2):
        assert suite.score(rows(1, 2)).values["total"].tolist() == [1, 2]
    assert Counted.calls == 4


def test_group_and_scheduled_rewards_are_never_cached(tmp_path):
    cache = ScoreCache(tmp_path / "scores.sqlite")
    for _ in range(2):
        RewardSuite([(Spread(), 1.0), (Larger(), 1.0)], cache=cache).score(rows(1, 3))
    assert cache.hits == cache.misses == 0


def test_files_that_are_no_cache_raise_by_name(tmp_path):
    (tmp_path / "scores.sqlite").write_text("something else, and long enough to be no empty file" * 20)
    with pytest.raises(RewardError, match=r"scores.sqlite cannot be used as a cache of scores"):
        ScoreCache(tmp_path / "scores.sqlite")
