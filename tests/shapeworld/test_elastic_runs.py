"""The runs of the study on servers that come and go: what a server does to a run is measured on real processes."""

from __future__ import annotations

import httpx
import pytest

from mmrl_shapeworld.serving import elastic_runs
from mmrl_shapeworld.serving.elastic_runs import elastic_run, pool_of


@pytest.mark.slow
def test_servers_start_answer_and_are_killed(tmp_path):
    with pool_of(1, tmp_path / "servers.txt") as pool:
        (url,) = pool.publish()
        assert (tmp_path / "servers.txt").read_text() == f"{url}\n"
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "sums"
        pool.kill(url)
        assert pool.publish() == ()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.slow
def test_a_killed_server_changes_no_parameter_and_a_restart_writes_more_answers_again(monkeypatch):
    for name, value in {"ITERATIONS": 5, "EVENT": 4, "SAVED": 2, "SETTLED": 0, "ABSENCE_S": 0.1}.items():
        monkeypatch.setattr(elastic_runs, name, value)
    undisturbed = elastic_run(0, servers=1)
    waited = elastic_run(0, servers=1, event="replaced")
    assert waited["fingerprint"] == undisturbed["fingerprint"]
    assert waited["reward"] == undisturbed["reward"]
    assert waited["written_again"] == [1.0] and undisturbed["written_again"] == [0.0]
    assert elastic_run(1, servers=1)["fingerprint"] != undisturbed["fingerprint"]
    restarted = elastic_run(0, servers=1, event="replaced", file=False)
    assert restarted["fingerprint"] == undisturbed["fingerprint"]
    assert restarted["written_again"] == [8.0]  # the prompts of the third iteration
