"""Settings with which an answer cannot go on under new weights are refused by name, before a model is loaded."""

from __future__ import annotations

import pytest

from mmrl.config.loading.load import parse_config
from mmrl.config.validation import validation_errors

BASE = """
name: served
policy: {kind: vlm, model: shapeworld, train: full}
sampling: {kind: tokens}
algorithm: {name: grpo, mismatch: {cap: 2.0}}
rewards: [{name: a}]
data: {path: "shapeworld:vlm-train"}
run: {servers: {urls: ["http://127.0.0.1:8000"], weights: folder}, overlap: {lag: 1, interrupt: true}}
"""


def refused(*overrides: str) -> list[str]:
    return validation_errors(parse_config(BASE, "served.yaml", overrides))


def test_served_answers_may_go_on_under_new_weights():
    assert refused() == []
    assert refused("run.overlap.lag=3") == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run.overlap.lag=0"], "answers are written during an update with a lag alone: set run.overlap.lag to 1"),
        (["run.overlap.stream=true"], "answers are written during an update with a lag alone: leave stream out"),
        (["run.servers=null"], "in process an answer ends under the weights that it began with: name run.servers"),
        (
            ["policy.train=lora", "run.servers.weights=lora"],
            "a server ends an answer under the adapter that it began with: choose policy.train full",
        ),
        (["environment={name: recheck}"], "the turns of an episode are written one after another"),
    ],
)
def test_what_cannot_work_is_refused(overrides, message):
    assert any(f"run.overlap.interrupt: {message}" in each for each in refused(*overrides)), refused(*overrides)


def test_nccl_does_not_send_the_parameters_of_a_copy():
    found = refused("run.servers.weights=nccl", "run.overlap.interrupt=false")
    assert any("run.servers.weights: nccl sends the trainer's own parameters" in each for each in found), found
