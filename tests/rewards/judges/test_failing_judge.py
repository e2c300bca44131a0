"""A suite over a judge that fails in every way: it finishes, counts by kind, and no failure becomes a zero."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import RewardInput, RewardSuite, Status, load
from mmrl.rewards.core.executor import WeightedReward
from mmrl.rewards.judges.judge import Judge, JudgeChecklist, JudgePairs, JudgeRanking
from tests.rewards.judges.fake_judge_server import (
    Cuts,
    FakeJudge,
    Hangs,
    HangsUp,
    Refuses,
    Says,
    Sends,
    Sure,
    between,
    giant,
)

BEHAVIOURS = {
    "ok": (Sure(0.7), None),
    "unavailable": (Refuses(503), "http_503"),
    "too many": (Refuses(429), "http_429"),
    "hangs": (Hangs(), "timeout"),
    "hangs midway": (Hangs(after=60), "timeout"),
    "cut": (Cuts(), "truncated"),
    "cut honestly": (Cuts(honest=True), "truncated"),
    "hangs up": (HangsUp(), "connection"),
    "a list": (Sends(b"[1, 2]"), "wrong_type"),
    "numbers for texts": (Sends(b'{"choices": [{"message": {"content": 1}}]}'), "wrong_type"),
    "no choices": (Sends(b'{"choices": []}'), "wrong_type"),
    "a page": (Sends(b"<html></html>", "text/html"), "not_json"),
    "babble": (Says("Well, it depends."), "unparseable"),
    "giant": (giant(5_000_000), "too_large"),
    "no": (Sure(0.0), None),
}


def answers(names, text="an answer"):
    picture = Image.new("RGB", (8, 8), "red")
    return [RewardInput(id=str(i), group=i, prompt=name, image=picture, text=text) for i, name in enumerate(names)]


def by_prompt(request):
    return BEHAVIOURS[between(request, "prompt")[0]][0]


def point(server, timeout_s=3):
    return Judge(model="stub", base_url=server.base_url, timeout_s=timeout_s)


@pytest.mark.integration
def test_failures_are_counted_by_kind_and_never_scored_zero():
    names = [name for name in BEHAVIOURS for _ in range(2)]
    with FakeJudge(by_prompt) as server:
        suite = RewardSuite([WeightedReward(point(server), retries=0), (load("compressibility"), 0.1)])
        begun = time.perf_counter()
        output = suite.score(answers(names))
        assert time.perf_counter() - begun < 60
        suite.close()
    expected = Counter(kind for name in names if (kind := BEHAVIOURS[name][1]))
    assert suite.failures(output) == {"judge": dict(expected)}
    for name, value, status, total in zip(
        names, output.values["judge"], output.status["judge"], output.values["total"], strict=True
    ):
        kind = BEHAVIOURS[name][1]
        if kind is None:
            assert value == pytest.approx({"ok": 0.7, "no": 0.0}[name]) and status is Status.OK and np.isfinite(total)
        else:
            assert np.isnan(value) and np.isnan(total), name
            assert status is (Status.TIMEOUT if kind == "timeout" else Status.ERROR)
    assert np.isfinite(output.values["compressibility"]).all(), "another reward is none the worse"
    counts = suite.counts(output)["judge"]
    assert counts == {"ok": 4, "timeout": 4, "error": len(names) - 8}


@pytest.mark.integration
def test_transient_failures_are_retried_and_others_are_not():
    requests, lock = Counter(), threading.Lock()

    def better_the_third_time(request):
        name = between(request, "prompt")[0]
        with lock:
            requests[name] += 1
            return by_prompt(request) if requests[name] < 3 else Sure(0.6)

    names = [name for name in BEHAVIOURS if name not in ("ok", "no")]
    with FakeJudge(better_the_third_time) as server:
        suite = RewardSuite([WeightedReward(point(server), retries=2, pause_s=0.01)])
        output = suite.score(answers(names))
        suite.close()
    kept = {"wrong_type", "not_json", "unparseable", "too_large"}
    for name, value in zip(names, output.values["judge"], strict=True):
        if name == "babble":  # requested twice: for log-probabilities, then as text
            assert np.isnan(value)
        elif BEHAVIOURS[name][1] in kept:
            assert np.isnan(value) and requests[name] == 1, name
        else:
            assert value == pytest.approx(0.6) and requests[name] == 3, name


def test_hanging_judge_costs_one_deadline():
    with FakeJudge(Hangs()) as server:
        suite = RewardSuite([WeightedReward(point(server, timeout_s=30), deadline_s=0.4, retries=0)])
        begun = time.perf_counter()
        output = suite.score(answers(["x"] * 12))
        assert time.perf_counter() - begun < 25  # of the 30 that the judge may take
        suite.close()
    assert set(output.status["judge"]) == {Status.TIMEOUT} and suite.valid_share(output) == 0
    assert suite.failures(output) == {"judge": {"timeout": 12}}


def test_unreachable_judge_scores_no_row():
    with FakeJudge(Sure(1.0)) as server:
        gone = point(server)
    suite = RewardSuite([WeightedReward(gone, retries=1, pause_s=0.01)])
    output = suite.score(answers(["x"] * 20))
    assert np.isnan(output.values["judge"]).all() and suite.failures(output) == {"judge": {"connection": 20}}
    suite.close()


@pytest.mark.parametrize("kind", [JudgePairs, JudgeChecklist, JudgeRanking])
@pytest.mark.parametrize("name", [name for name, (_, failure) in BEHAVIOURS.items() if failure])
def test_every_kind_of_judge_reports_failures(kind, name):
    behaviour, failure = BEHAVIOURS[name]
    with FakeJudge(behaviour) as server:
        own = {"questions": ["Is it?"]} if kind is JudgeChecklist else {}
        reward = kind(model="stub", base_url=server.base_url, timeout_s=0.3 if failure == "timeout" else 20, **own)
        items = [RewardInput(id=str(i), group=0, prompt="x", text=str(i)) for i in range(3)]
        output = reward.score(items)
    assert np.isnan(output.values[reward.name]).all()
    assert [row[reward.name].kind for row in output.failures] == [failure] * 3


@pytest.mark.integration
def test_judge_requests_overlap():
    with FakeJudge(Sure(0.5), delay_s=0.2) as server:
        reward = point(server, timeout_s=20)
        suite = RewardSuite([(reward, 1.0)])
        suite.score(answers(["x"]))  # connects
        begun = time.perf_counter()
        output = suite.score(answers([f"x{i}" for i in range(48)]))
        seconds = time.perf_counter() - begun
        suite.close()
    assert set(output.status["judge"]) == {Status.OK}
    assert seconds < 48 * 0.2 and 4 < server.most_at_once <= reward.concurrency
