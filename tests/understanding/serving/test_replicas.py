"""Two servers as processes, one of which is killed, frozen or started again: no group is lost, none is learnt twice."""

from __future__ import annotations

import threading
import time

import pytest

from mmrl_shapeworld.serving.stub_server import SLOW_GROUP
from tests.understanding.serving.served_run import GROUP_SIZE, GROUPS, PATIENT, QUICK, served_config, train_served

ITERATIONS = 4


def run(replicas, folder_of, tmp_path, monkeypatch, before=None, timeouts=PATIENT):
    servers = {"urls": [each.url for each in replicas], "timeouts": timeouts | {"request": 100.0}}
    training = {"iterations": ITERATIONS, "save_every": 1}
    config = served_config(folder_of("qwen3_vl"), tmp_path, servers, training=training)
    return train_served(config, monkeypatch, before)


def assert_every_group_was_learnt_once(outcome):
    assert outcome.error is None
    assert outcome.rows == ITERATIONS * GROUPS * GROUP_SIZE
    assert outcome.groups == [*range(GROUPS)] * ITERATIONS
    assert max(outcome.gaps) <= 1e-5


def when_it_has_a_group(replica, end):
    """Let a server keep its groups, and call `end` once it has one."""
    replica.inject(slow_group=-1)
    before = replica.log().count(SLOW_GROUP)

    def wait():
        while replica.log().count(SLOW_GROUP) == before:
            time.sleep(0.05)
        end()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.slow
def test_groups_are_dealt_to_both_replicas(replicas, folder_of, tmp_path, monkeypatch):
    outcome = run(replicas, folder_of, tmp_path, monkeypatch)
    assert_every_group_was_learnt_once(outcome)
    assert [line["served/servers"] for line in outcome.metrics()] == [2] * ITERATIONS
    for each in replicas:
        assert each.log().count("/inference/v1/generate") > ITERATIONS * GROUPS  # its proofs, and groups


@pytest.mark.slow
def test_a_replica_that_is_killed_while_it_answers_and_started_again(
    replicas, folder_of, tmp_path, monkeypatch, caplog
):
    """It dies with a group in iteration 2, is away in iteration 3, and comes back without weights in iteration 4."""
    first = replicas[0]

    def before(call):
        if call == 1:
            when_it_has_a_group(first, first.kill)
        if call == 3:
            first.start()
            first.wait()

    outcome = run(replicas, folder_of, tmp_path, monkeypatch, before)
    assert_every_group_was_learnt_once(outcome)
    assert [line["served/servers"] for line in outcome.metrics()] == [2, 1, 1, 2]
    assert f"{first.url}: " in caplog.text and "The others write its" in caplog.text
    assert "/v1/load_lora_adapter" in first.log()


@pytest.mark.integration
def test_a_replica_that_freezes_while_it_answers(replicas, folder_of, tmp_path, monkeypatch, caplog):
    first = replicas[0]

    def before(call):
        if call == 1:
            when_it_has_a_group(first, first.freeze)

    outcome = run(replicas, folder_of, tmp_path, monkeypatch, before, timeouts=QUICK)
    first.thaw()
    assert_every_group_was_learnt_once(outcome)
    metrics = outcome.metrics()
    assert metrics[1]["served/dealt_again"] >= 1
    assert metrics[1]["served/servers"] == 1
    assert "has not answered for 6 s" in caplog.text


@pytest.mark.parametrize(
    ("end", "timeouts", "within"),
    [
        ("freeze", QUICK, 20),
        pytest.param("kill", QUICK, 20, marks=pytest.mark.slow),
        pytest.param("freeze", {}, 60, marks=pytest.mark.slow, id="freeze-with-the-default-timeouts"),
    ],
)
def test_when_all_replicas_end_one_message_names_them_the_phase_and_the_iteration(
    replicas, folder_of, tmp_path, monkeypatch, end, timeouts, within
):
    ended = []

    def before(call):
        if call == 2:
            replicas[1].inject(slow_group=-1)

            def end_all():
                ended.append(time.monotonic())
                for each in replicas:
                    getattr(each, end)()

            when_it_has_a_group(replicas[0], end_all)

    outcome = run(replicas, folder_of, tmp_path, monkeypatch, before, timeouts)
    took = time.monotonic() - ended[0]
    for each in replicas:
        if end == "freeze":
            each.thaw()
        assert each.url in outcome.error
    assert "no server is left" in outcome.error
    assert "in the phase rollout of iteration 3; the last good iteration is 2, the last saved one 2" in outcome.error
    assert f"mmrl train --resume {outcome.folder}" in outcome.error
    assert took < within
    assert outcome.rows == 2 * GROUPS * GROUP_SIZE


@pytest.mark.slow
def test_a_server_that_was_restarted_between_two_rollouts_gets_the_weights_again(
    replicas, folder_of, tmp_path, monkeypatch
):
    first = replicas[0]

    def before(call):
        if call == 2:
            first.kill()
            first.start()
            first.wait()

    outcome = run(replicas[:1], folder_of, tmp_path, monkeypatch, before)
    assert_every_group_was_learnt_once(outcome)
    assert first.log().count("/v1/load_lora_adapter") == ITERATIONS - 2
