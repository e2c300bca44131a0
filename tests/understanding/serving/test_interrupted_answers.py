"""Answers that go on under new weights: each token has the version that wrote it, and its log-probability."""

from __future__ import annotations

import pytest
import torch

from mmrl.errors import ConfigError, RunError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.serving.generate_messages import _token_versions
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.workflows.train import train
from mmrl_shapeworld.serving.stub_server import WAITS_FOR_PAUSE
from mmrl_shapeworld.serving.stub_writer import WAITS_AT
from tests.understanding.serving.served_run import GROUP_SIZE, GROUPS, Outcome, served_config
from tests.understanding.serving.stub_process import stub
from tests.understanding.serving.test_served_engine import SAMPLES, move, policy_of, settings

REQUESTS = [RolloutRequest(sample, 3, group) for group, sample in enumerate(SAMPLES)]
FOLDER = 1
"""The number of the shared server that takes whole weights."""


@pytest.fixture
def policy(server, folder_of, tmp_path):
    found = policy_of(folder_of("qwen3_vl"), "full")
    found.serve(settings(server.url_of("folder"), weights="folder"), tmp_path)
    yield found
    server.inject(FOLDER)


@pytest.fixture
def interrupted(server, policy):
    """A rollout each of whose groups waits until the server is paused for newer weights, and the weights before."""
    before = {name: parameter.detach().clone() for name, parameter in policy.parameters_to_train().items()}
    log = move_in_the_middle(server, policy)
    rollout = policy.rollout(REQUESTS, seed=0)
    return rollout, before, [path for path in server.log(FOLDER)[log:] if not path.startswith("/inference")]


def move_in_the_middle(server, policy, **faults):
    """Let newer weights come once all groups of the next rollout wait; return the requests before it."""
    policy.rollout(REQUESTS, seed=3)  # the first version is there and proven
    log = len(server.log(FOLDER))

    def take():
        if policy.version or server.log(FOLDER)[log:].count(WAITS_FOR_PAUSE) < len(REQUESTS):
            return False
        move(policy)
        return True

    policy.adopt(take)
    server.inject(FOLDER, waits_for_pause=-1, **faults)
    return log


@torch.no_grad()
def scores(policy, rollout):
    return policy.score_recording(rollout.recording)


@pytest.mark.integration
def test_each_token_has_the_version_and_the_log_prob_of_the_weights_that_wrote_it(policy, interrupted):
    rollout, before, _ = interrupted
    assert set(rollout.versions[rollout.mask].tolist()) == {0, 1} and rollout.policy_version == 0
    mixed = 0
    for row, own in zip(rollout.versions, rollout.mask, strict=True):
        seen = row[own].tolist()
        assert seen == sorted(seen) and seen[:WAITS_AT] == [0] * min(len(seen), WAITS_AT)
        mixed += len(set(seen)) == 2
    assert mixed >= 6
    new = scores(policy, rollout)
    with torch.no_grad():
        for name, parameter in policy.parameters_to_train().items():
            parameter.copy_(before[name])
    old = scores(policy, rollout)
    old_gap, new_gap = ((own - rollout.log_probs).abs() for own in (old, new))
    first, rest = (rollout.mask & (rollout.versions == version) for version in (0, 1))
    assert old_gap[first].mean() <= 1e-5 and new_gap[rest].mean() <= 1e-5
    assert new_gap[first].mean() > 1e-3 and old_gap[rest].mean() > 1e-3


@pytest.mark.integration
def test_a_server_is_paused_before_it_has_no_version_and_goes_on_after_it_has_one(policy, interrupted):
    _, _, routes = interrupted
    start = routes.index("/pause")
    assert routes[start : start + 7] == [
        *("/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache"),
        *("/reset_encoder_cache", "/update_weight_version", "/resume"),
    ]
    found = policy.rollout_metrics()
    assert found["served/renewed"] == 1
    assert found["served/interrupted_gap"] <= 1e-5 and found["served/probe_gap"] <= 1e-5


@pytest.mark.integration
def test_rollouts_without_newer_weights_are_as_without_the_key(policy, interrupted, folder_of):
    rollout = policy.rollout(REQUESTS, seed=5)
    assert set(rollout.versions[rollout.mask].tolist()) == {1}
    policy.engine._take = None
    plain = policy.rollout(REQUESTS, seed=5)
    assert plain.versions is None and plain.token_ids == rollout.token_ids
    assert torch.equal(plain.log_probs, rollout.log_probs) and plain.policy_version == rollout.policy_version == 1
    with pytest.raises(ConfigError, match=r"run\.overlap\.interrupt: in process an answer ends"):
        policy_of(folder_of("qwen3_vl")).adopt(lambda: False)


@pytest.mark.integration
def test_keys_and_values_of_older_weights_are_found(server, policy):
    move_in_the_middle(server, policy, kept_keys=-1)
    with pytest.raises(RunError, match=r"this server ignores reset_running_requests.*Nothing was learnt from it"):
        policy.rollout(REQUESTS, seed=0)


@pytest.mark.slow
def test_each_of_two_servers_gets_the_weights_in_the_middle_of_its_answers(folder_of, tmp_path):
    with stub(one=folder_of("qwen3_vl"), other=folder_of("qwen3_vl")) as process:
        policy = policy_of(folder_of("qwen3_vl"), "full")
        policy.serve(settings(*process.urls, weights="folder", concurrency=1), tmp_path)
        policy.rollout(REQUESTS, seed=3)
        before = [len(process.log(number)) for number in range(2)]

        def take():
            waiting = [WAITS_FOR_PAUSE in process.log(number)[before[number] :] for number in range(2)]
            if policy.version or not all(waiting):
                return False
            move(policy)
            return True

        policy.adopt(take)
        for number in range(2):
            process.inject(number, waits_for_pause=-1)
        rollout = policy.rollout(REQUESTS, seed=0)
    assert set(rollout.versions[rollout.mask].tolist()) == {0, 1}
    found = policy.rollout_metrics()
    assert found["served/renewed"] == 2 and found["served/interrupted_gap"] <= 1e-5
    rest = rollout.mask & (rollout.versions == 1)
    assert (scores(policy, rollout) - rollout.log_probs).abs()[rest].mean() <= 1e-5


KNOWN = {"mmrl-0": 4, "mmrl-1": 5}


def spans(*found):
    keys = ("version", "start", "end")
    return {"token_ids": [7] * 4, "weight_versions": [dict(zip(keys, each, strict=True)) for each in found]}


def test_versions_of_tokens_are_those_of_the_spans():
    assert _token_versions(spans(("mmrl-0", 0, 1), ("mmrl-1", 1, 4)), KNOWN, "http://x") == [4, 5, 5, 5]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (spans(("mmrl-0", 0, 3)), "cover 3 of the 4 tokens"),
        (spans(("mmrl-0", 0, 2), ("mmrl-1", 3, 4)), "do not follow each other"),
        (spans(("mmrl-0", 0, 3), ("mmrl-1", 2, 4)), "do not follow each other"),
        (spans(("mmrl-0", 0, 5)), "do not follow each other"),
        (spans(("mmrl-0", 0, 2), ("mmrl-updating", 2, 4)), "written by 'mmrl-updating', not by one of mmrl-0, mmrl-1"),
        ({"token_ids": [7], "weight_versions": None}, "report no weight_versions"),
    ],
)
def test_spans_that_say_nothing_of_a_token_are_refused(choice, message):
    with pytest.raises(ServerFailure, match=message):
        _token_versions(choice, KNOWN, "http://x")


@pytest.mark.integration
def test_a_run_learns_from_interrupted_answers_and_counts_their_tokens_by_version(
    server, folder_of, tmp_path, monkeypatch
):
    """The answers of the second iteration wait until the parameters after the first one are there."""
    announce, calls = VLMPolicy.announce, iter(range(100))

    def spy(self, announced):
        if next(calls) == 1:
            server.inject(FOLDER, waits_for_pause=-1)
        announce(self, announced)

    monkeypatch.setattr(VLMPolicy, "announce", spy)
    patient = {"connect": 10.0, "silence": 60.0, "request": 60.0, "update": 60.0}
    servers = {"urls": [server.url_of("folder")], "weights": "folder", "timeouts": patient}
    config = served_config(
        folder_of("qwen3_vl"), tmp_path, servers, "full", training={"iterations": 3, "save_every": 10}
    )
    overlap = config.run.overlap.model_copy(update={"lag": 1, "interrupt": True})
    config = config.model_copy(update={"run": config.run.model_copy(update={"overlap": overlap})})
    lines = Outcome(train(config)).metrics()
    server.inject(FOLDER)
    assert lines[0]["lag/interrupted"] == 0 and lines[0]["lag/updates"] == 0
    assert GROUP_SIZE <= lines[1]["lag/interrupted"] <= GROUPS * GROUP_SIZE
    assert lines[1]["lag/decisions_of_1"] >= lines[1]["lag/interrupted"]  # a pause may come early
    assert lines[1]["lag/decisions_of_0"] >= lines[1]["lag/interrupted"]
    assert lines[1]["served/interrupted_gap"] <= 1e-5
    assert max(line["mismatch/engine_gap"] for line in lines) < 1e-4  # each token under the weights that wrote it
    assert lines[1]["mismatch/mean_gap"] > 1e-4  # those of before differ from the trainer's
