"""Several processes that train together, each with other servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.workflows.train import train
from tests.distributed.calls_in_group import call_in_group
from tests.understanding.serving.served_run import Outcome, served_config

PATIENT = {"connect": 10.0, "silence": 60.0, "request": 60.0, "update": 60.0}


def train_in_group(folder: Path) -> str:
    """Train with the servers and the model that a file names; return the error, if there is one."""
    wanted = json.loads((folder / "wanted.json").read_text())
    servers = {"urls": wanted["urls"], "timeouts": PATIENT}
    config = served_config(Path(wanted["model"]), folder / f"rank-{processes.rank()}", servers)
    data, run = config.data, config.run.model_copy(update={"dir": str(folder / "run")})
    config = config.model_copy(update={"run": run, "data": data.model_copy(update={"path": wanted["data"]})})
    config = config.model_copy(update={"rewards": [config.rewards[0].model_copy(update={"name": wanted["reward"]})]})
    try:
        train(config)
    except ConfigError as err:
        return str(err)
    return ""


@pytest.mark.slow
def test_each_process_gives_its_own_servers_the_weights(fork_server, replicas, folder_of, tmp_path):
    alone = served_config(folder_of("qwen3_vl"), tmp_path / "alone", {"urls": [replicas[0].url], "timeouts": PATIENT})
    expected = Outcome(train(alone)).metrics()
    before = [each.log().count("/v1/load_lora_adapter") for each in replicas]
    group = tmp_path / "group"
    group.mkdir()
    wanted = {"model": str(folder_of("qwen3_vl")), "data": alone.data.path, "reward": alone.rewards[0].name}
    (group / "wanted.json").write_text(json.dumps(wanted | {"urls": [each.url for each in replicas]}))
    name = "tests.understanding.serving.test_served_processes:train_in_group"
    assert call_in_group(fork_server, group, 2, name) == ["", ""]
    found = Outcome(group / "run").metrics()
    loads = [each.log().count("/v1/load_lora_adapter") - old for each, old in zip(replicas, before, strict=True)]
    assert loads == [len(found)] * 2  # each server each version, from one process
    for one, other in zip(expected, found, strict=True):
        assert (one["served/servers"], other["served/servers"]) == (1, 2)
        assert other["reward/total"] == pytest.approx(one["reward/total"], abs=1e-6)  # the same answers
        assert other["served/probe_gap"] <= 1e-5 and other["mismatch/mean_gap"] <= 1e-5


@pytest.mark.integration
def test_fewer_servers_than_processes_are_refused(fork_server, folder_of, tmp_path):
    made = served_config(folder_of("qwen3_vl"), tmp_path / "alone", {"urls": ["http://127.0.0.1:9"]})
    wanted = {"model": str(folder_of("qwen3_vl")), "data": made.data.path, "reward": made.rewards[0].name}
    group = tmp_path / "group"
    group.mkdir()
    (group / "wanted.json").write_text(json.dumps(wanted | {"urls": ["http://127.0.0.1:9"]}))
    name = "tests.understanding.serving.test_served_processes:train_in_group"
    for error in call_in_group(fork_server, group, 2, name):
        assert error.startswith("run.servers.urls: 2 processes train, each with other servers, and 1 are named")
