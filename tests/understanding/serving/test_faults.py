"""Faults that are injected into a server: none reaches an optimizer step."""

from __future__ import annotations

import pytest

from tests.understanding.serving.served_run import GROUP_SIZE, GROUPS, ITERATIONS, served_config, train_served
from tests.understanding.serving.stub_process import stub


@pytest.fixture(scope="module")
def server(folder_of):
    """Two servers: one for adapters, one for whole weights."""
    with stub(lora=folder_of("qwen3_vl"), folder=folder_of("qwen3_vl")) as process:
        yield process


def run(server, folder_of, tmp_path, monkeypatch, weights="lora", before=None, **changes):
    servers = {"urls": [server.url_of(weights)], "weights": weights} | changes.pop("servers", {})
    train = "lora" if weights == "lora" else "full"
    config = served_config(folder_of("qwen3_vl"), tmp_path, servers, train, **changes)
    return train_served(config, monkeypatch, before)


@pytest.mark.parametrize("weights", ["lora", "folder"])
def test_a_run_without_faults_learns_from_every_group(server, folder_of, tmp_path, monkeypatch, weights):
    outcome = run(server, folder_of, tmp_path, monkeypatch, weights)
    assert outcome.error is None
    assert outcome.rows == ITERATIONS * GROUPS * GROUP_SIZE
    assert max(outcome.gaps) <= 1e-5
    last = outcome.metrics()[-1]
    assert last["served/probe_share"] == pytest.approx(1.0, abs=0.01)
    assert last["served/probe_gap"] <= last["served/probe_gap_max"] <= 1e-4 < last["served/probe_moved"]
    assert last["served/servers"] == 1
    assert last["mismatch/mean_gap"] <= last["mismatch/gap"] <= 1e-4
