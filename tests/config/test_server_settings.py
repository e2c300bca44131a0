"""Settings of `run.servers` that cannot work are refused by name, before a model is loaded."""

from __future__ import annotations

import pytest

from mmrl.config.loading.load import parse_config
from mmrl.config.loading.overrides import check_resume_config
from mmrl.config.validation import validation_errors
from mmrl.errors import ConfigError

BASE = """
name: served
policy: {kind: vlm, model: shapeworld}
sampling: {kind: tokens}
algorithm: {name: grpo, mismatch: {cap: 2.0}}
rewards: [{name: a}]
data: {path: "shapeworld:vlm-train"}
run: {servers: {urls: ["http://127.0.0.1:8000"]}}
"""


def refused(*overrides: str) -> list[str]:
    return validation_errors(parse_config(BASE, "served.yaml", overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["run.servers.urls=['http://127.0.0.1:8000/', 'https://box:8000']"],
        ["policy.train=full", "run.servers.weights=folder"],
        ["run.servers={file: servers.txt}"],
        ["policy.train=full", "run.servers.weights=nccl"],
        ["algorithm={name: rejection_sft}"],
    ],
)
def test_valid_servers_are_accepted(overrides):
    assert refused(*overrides) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.train=full"], "run.servers.weights: policy.train is full, which goes with folder or nccl"),
        (["run.servers.weights=folder"], "run.servers.weights: policy.train is lora, which goes with lora"),
        (["algorithm={name: grpo}"], "algorithm.mismatch is missing: servers compute other log-probabilities"),
        (["algorithm={name: sft}"], "run.servers: sft samples no answers: leave it out"),
        (["run.servers.urls=[]"], "run.servers.urls: name a server, or a file of servers in run.servers.file"),
        (["run.servers.file=servers.txt"], "run.servers.file: the servers are named in it or in run.servers.urls"),
        (
            ["run.servers={file: servers.txt, weights: nccl}", "policy.train=full"],
            "run.servers.file: nccl connects the trainer with servers that are known before",
        ),
        (["sampling.top_p=0.9"], "sampling.top_p: the log-probabilities of a server are those after top_p"),
        (["sampling.top_k=50"], "sampling.top_k: the log-probabilities of a server are those after top_k"),
        (["run.place=window"], "run.place: window divides the model over processes"),
        (["run.servers.urls=['http://a:1', 'http://a:1/']"], "run.servers.urls: a server is there twice"),
        (
            ["policy={kind: pipeline, model: shapeworld, train: lora}", "sampling={transition: {name: flow_sde}}"],
            "run.servers: servers write the answers of a policy of kind vlm, and this one is of pipeline",
        ),
        (
            ["policy.train=full", "policy.device=cpu", "run.servers.weights=nccl"],
            "run.servers.weights: nccl goes from GPU to GPU",
        ),
    ],
)
def test_servers_that_cannot_work_are_refused_by_name(overrides, message):
    assert any(text.startswith(message) for text in refused(*overrides)), refused(*overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.servers.urls=['box:8000']", "run.servers.urls.0: .*such as http://127.0.0.1:8000"),
        ("run.servers.urls=['http://box:70000']", "run.servers.urls.0"),
        ("run.servers.urls=['http://box:8000/v1']", "run.servers.urls.0: .*without /v1"),
        ("run.servers.weights=rsync", "run.servers.weights"),
        ("run.servers.timeouts.silence=0", "run.servers.timeouts.silence"),
        ("run.servers.timeout=3", "run.servers.timeout"),
    ],
)
def test_malformed_servers_are_refused_with_their_key(override, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(BASE, "served.yaml", [override])


def test_a_password_in_a_url_is_refused_and_not_repeated():
    (text,) = refused("run.servers.urls=['http://me:secret@box:8000']")
    assert text.startswith("run.servers.urls.0: it has a user, a password or a query") and "secret" not in text


def test_a_resumed_run_may_have_other_servers_and_no_other_learning_rate():
    trained = parse_config(BASE, "served.yaml", [])
    moved = parse_config(BASE, "served.yaml", ["run.servers.urls=['http://b:1']", "run.timeouts.silence=9"])
    check_resume_config(trained, moved, "config.yaml")
    check_resume_config(trained, parse_config(BASE, "served.yaml", ["run.servers=null"]), "config.yaml")
    with pytest.raises(ConfigError, match=r"config\.yaml: optimizer\.lr is 0\.5"):
        check_resume_config(trained, parse_config(BASE, "served.yaml", ["optimizer.lr=0.5"]), "config.yaml")
