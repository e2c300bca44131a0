"""Servers that a file names join and leave a run that goes on: no answer is lost, learnt twice, or another one."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from mmrl.build.policies import check_servers, own_servers
from mmrl.config.servers import ServersConfig
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.understanding.serving import group_dealing
from mmrl.understanding.serving.server_list import ServerList
from tests.understanding.serving.served_run import PATIENT, served_config, train_served
from tests.understanding.serving.test_replicas import (
    ITERATIONS,
    assert_every_group_was_learnt_once,
    when_it_has_a_group,
)
from tests.understanding.serving.test_served_engine import REQUESTS, gap, move, policy_of, settings

GENERATE = "/inference/v1/generate"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(group_dealing, "READ_S", 0.1)


def name(file, *servers):
    """Replace the file as a whole."""
    fresh = file.with_suffix(".new")
    fresh.write_text("".join(f"{each if isinstance(each, str) else each.url}\n" for each in servers))
    fresh.replace(file)


def run(file, folder_of, tmp_path, monkeypatch, before=None, **servers):
    timeouts = PATIENT | {"request": 100.0} | servers.pop("timeouts", {})
    config = served_config(
        folder_of("qwen3_vl"),
        tmp_path,
        {"file": str(file), "timeouts": timeouts} | servers,
        training={"iterations": ITERATIONS, "save_every": ITERATIONS},
    )
    return train_served(config, monkeypatch, before)


def parameters(outcome):
    return load_file(Checkpoints(outcome.folder).path() / "trainer" / "parameters.safetensors")


# The file


def test_a_file_names_servers_with_comments_and_each_once(tmp_path):
    file = tmp_path / "servers-0.txt"
    file.write_text("# two of them\nhttp://a:1/\n\n  http://b:2  # joined later\nhttp://a:1\n")
    listed = ServerList(ServersConfig(file=str(tmp_path / "servers-{rank}.txt")))
    assert listed.read() == listed.now() == ("http://a:1", "http://b:2")
    assert ServerList(ServersConfig(urls=("http://c:3",))).now() == ("http://c:3",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"run\.servers\.file: .*servers\.txt cannot be read"),
        ("http://a:1\nbox:8000\n", r"servers\.txt, line 2 is 'box:8000': expected a URL such as http://127\.0\.0\.1"),
        ("http://a:1/v1\n", r"servers\.txt, line 1 is .*without /v1"),
        ("http://me:secret@a:1\n", r"servers\.txt, line 1 has a user, a password or a query"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_and_leaves_the_servers_as_they_were_later(
    tmp_path, caplog, text, message
):
    file = tmp_path / "servers.txt"
    listed = ServerList(ServersConfig(file=str(file)))
    file.write_text("http://before:1\n")
    assert listed.now() == ("http://before:1",)
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        listed.read()
    assert "secret" not in str(raised.value)
    for _ in range(2):
        assert listed.now() == ("http://before:1",)
    assert caplog.text.count("The servers that were read before are used on") == 1


def test_a_run_does_not_begin_without_a_server_in_its_file(folder_of, tmp_path):
    file = tmp_path / "servers.txt"
    file.write_text("# none yet\n")
    config = served_config(folder_of("qwen3_vl"), tmp_path, {"file": str(file)})
    with pytest.raises(ConfigError, match=r"run\.servers\.file: .*servers\.txt: no server answers: it names none"):
        check_servers(config)


def test_several_processes_have_a_file_each(monkeypatch):
    monkeypatch.setattr(processes, "size", lambda: 2)
    monkeypatch.setattr(processes, "rank", lambda: 1)
    with pytest.raises(ConfigError, match=r"2 processes train.*\{rank\} in the place of its number"):
        own_servers(ServersConfig(file="servers.txt"))
    assert str(ServerList(own_servers(ServersConfig(file="servers-{rank}.txt"))).file) == "servers-1.txt"


# Runs


@pytest.mark.slow
def test_a_server_joins_in_the_middle_of_a_rollout_and_takes_over_from_one_that_is_killed(
    replicas, folder_of, tmp_path, monkeypatch
):
    """The parameters are those of an undisturbed run, to the bit."""
    first, second = replicas
    file = tmp_path / "servers.txt"

    def before(call):
        if call == 1:

            def replace():
                name(file, first, second)
                while GENERATE not in second.log():  # it joins while the first one keeps its groups
                    time.sleep(0.05)
                first.kill()
                name(file, second)

            when_it_has_a_group(first, replace)

    name(file, first)
    outcome = run(file, folder_of, tmp_path / "disturbed", monkeypatch, before)
    assert_every_group_was_learnt_once(outcome)
    metrics = outcome.metrics()
    assert [line["served/servers"] for line in metrics] == [1] * ITERATIONS
    assert metrics[1]["served/dealt_again"] >= 1
    assert second.log().count("/v1/load_lora_adapter") == ITERATIONS - 1
    undisturbed = run(file, folder_of, tmp_path / "undisturbed", monkeypatch)
    expected, found = parameters(undisturbed), parameters(outcome)
    assert expected and all(torch.equal(values, found[key]) for key, values in expected.items())


@pytest.mark.slow
def test_a_run_without_servers_waits_for_one_and_goes_on(replicas, folder_of, tmp_path, monkeypatch, caplog):
    first, second = replicas
    file = tmp_path / "servers.txt"

    def before(call):
        if call == 1:

            def end():
                first.kill()
                while "No server is left" not in caplog.text:
                    time.sleep(0.05)
                name(file, second)

            when_it_has_a_group(first, end)

    name(file, first)
    with caplog.at_level(logging.WARNING):
        outcome = run(file, folder_of, tmp_path, monkeypatch, before)
    assert_every_group_was_learnt_once(outcome)
    assert caplog.text.count("No server is left") == 1
    assert f"The run waits 300 s for one that {file} names" in caplog.text


@pytest.mark.slow
def test_a_run_for_which_no_server_comes_ends_with_the_file_the_wait_and_the_reason(
    replicas, folder_of, tmp_path, monkeypatch
):
    first = replicas[0]
    file = tmp_path / "servers.txt"
    name(file, first)

    def before(call):
        if call == 1:
            when_it_has_a_group(first, first.kill)

    outcome = run(file, folder_of, tmp_path, monkeypatch, before, timeouts={"replacement": 1.0})
    assert outcome.error is not None
    assert f"run.servers.file: no server of {file} could write answers for 1 s (run.servers.timeouts.replacement)" in (
        outcome.error
    )
    assert first.url in outcome.error and "in the phase rollout of iteration 2" in outcome.error
    assert len(outcome.metrics()) == 1


@pytest.mark.slow
def test_a_server_that_leaves_ends_its_group_and_takes_no_other(replicas, folder_of, tmp_path, monkeypatch):
    first, second = replicas
    file = tmp_path / "servers.txt"
    name(file, first, second)
    left, looks, now = [], [], ServerList.now
    monkeypatch.setattr(ServerList, "now", lambda self: looks.append(1) or now(self))

    def before(call):
        if call == 1:

            def leave():
                name(file, second)
                seen = len(looks)
                while len(looks) < seen + 2:
                    time.sleep(0.05)
                first.inject()  # it ends its group
                left.append(first.log().count(GENERATE))

            when_it_has_a_group(first, leave)

    outcome = run(file, folder_of, tmp_path, monkeypatch, before, concurrency=1)
    assert_every_group_was_learnt_once(outcome)
    assert first.log().count(GENERATE) == left[0]
    assert [line["served/servers"] for line in outcome.metrics()] == [2, 1, 1, 1]
    assert outcome.metrics()[1].get("served/dealt_again", 0) == 0


@pytest.mark.slow
def test_two_policies_learn_from_one_pool_of_servers_at_once(replicas, folder_of, tmp_path):
    """Each server has the adapters of both, and each policy gets the answers of its weights alone."""
    file = tmp_path / "servers.txt"
    name(file, *replicas)
    policies = [policy_of(folder_of("qwen3_vl")) for _ in range(2)]
    for number, policy in enumerate(policies):
        policy.serve(settings(file=str(file)), tmp_path / str(number))
        move(policy, seed=number)
    for version in range(2):
        with ThreadPoolExecutor(2) as threads:
            one, other = threads.map(lambda policy: policy.rollout(REQUESTS, seed=version), policies)  # noqa: B023
        assert gap(policies[0], one) <= 1e-5 and gap(policies[1], other) <= 1e-5
        assert gap(policies[0], other) > 1e-3
        for policy in policies:
            move(policy, seed=7)
