"""A run whose judge fails in every way goes on, counts each failure by its kind, and takes none for a zero."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from mmrl.data.prompts import PromptSampler
from mmrl.errors import RunError
from mmrl.rewards import RewardSuite, WeightedReward, load
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.run.trackers import METRICS
from tests.rewards.judges.fake_judge_server import Cuts, FakeJudge, Hangs, HangsUp, Refuses, Sends, Sure, in_turn
from tests.training.conftest import samples

GOOD = Sure(0.75, other=0.0)
FAULTS = {
    "http_503": Refuses(503),
    "http_400": Refuses(400),
    "timeout": Hangs(),
    "truncated": Cuts(0.5),
    "connection": HangsUp(),
    "wrong_type": Sends(b'{"choices": 7}'),
    "unparseable": Sure(0.5, yes="Perhaps", no="Maybe"),
}


def with_judge(trainer, url, retries=0, **settings):
    """The trainer, scoring its answers by a judge at `url`."""
    judge = load("judge", model="stub", base_url=url, timeout_s=1.0, read="logprobs")
    suite = RewardSuite([WeightedReward(judge, retries=retries, pause_s=0.01)], **settings)
    source = trainer.source
    trainer.source = OnlineRollouts(
        policy=source.policy,
        sampling_weights=source.sampling_weights,
        prompts=PromptSampler(samples(), 2, seed=0),
        suite=suite,
        advantage_estimator=AdvantageEstimator(source.advantage_estimator.config, suite.weights),
        group_size=8,
        micro_batch=4,  # several calls an iteration: scored while the next ones are drawn
        seed=3,
    )
    return trainer


def metrics(run):
    return [json.loads(line) for line in (run / METRICS).read_text().splitlines()]


@pytest.mark.integration
def test_run_with_a_faulty_judge_finishes_and_counts_each_failure(make_trainer):
    script = in_turn(*[answer for fault in FAULTS.values() for answer in (GOOD, fault)])
    with FakeJudge(script) as stub:
        trainer = with_judge(make_trainer(training={"iterations": 4, "save_every": 4}), stub.base_url)
        trainer.train()
    found = Counter()
    for row in metrics(trainer.run):
        assert row["reward/judge"] == pytest.approx(0.75, abs=1e-6)  # a zero among them would lower it
        found.update({key: int(value) for key, value in row.items() if key.startswith("failure/judge/")})
        lost = sum(value for key, value in row.items() if key.startswith("status/judge/"))
        assert lost == sum(value for key, value in row.items() if key.startswith("failure/judge/"))
    assert {key.removeprefix("failure/judge/") for key in found} == set(FAULTS)
    assert sum(found.values()) == 4 * 16 / 2


def test_retried_failures_lose_no_score(make_trainer):
    with FakeJudge(in_turn(Refuses(503), GOOD)) as stub:
        trainer = with_judge(make_trainer(training={"iterations": 1}), stub.base_url, retries=8)
        trainer.train()
    (row,) = metrics(trainer.run)
    assert row["reward/judge"] == pytest.approx(0.75, abs=1e-6)
    assert not [key for key in row if key.startswith(("failure/", "status/"))]


def test_unreachable_judge_stops_the_run_with_the_reason(make_trainer):
    with FakeJudge(Refuses(503)) as stub:
        trainer = with_judge(make_trainer(), stub.base_url, min_valid_share=0.5)
        with pytest.raises(RunError, match=r"only 0% .*'judge': \{'http_503': 16\}.*training.min_valid_share"):
            trainer.train()
