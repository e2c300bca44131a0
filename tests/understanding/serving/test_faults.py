"""Faults that are injected into a server: none reaches an optimizer step."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from mmrl.build.policies import check_servers
from mmrl.cli import app
from mmrl.config import dump_config
from mmrl.errors import ConfigError
from mmrl.understanding.serving import group_dealing, vllm_client
from mmrl.workflows.train import train
from tests.understanding.serving.served_run import GROUP_SIZE, GROUPS, ITERATIONS, QUICK, served_config, train_served


def run(server, folder_of, tmp_path, monkeypatch, weights="lora", before=None, **changes):
    servers = {"urls": [server.url_of(weights)], "weights": weights} | changes.pop("servers", {})
    train = "lora" if weights == "lora" else "full"
    config = served_config(folder_of("qwen3_vl"), tmp_path, servers, train, **changes)
    return train_served(config, monkeypatch, before)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["lora", pytest.param("folder", marks=pytest.mark.slow)])
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


def passing(name, count=1, weights="lora", **changes):
    """A fault that passes: the run learns from every group all the same."""
    return pytest.param(name, count, weights, None, changes, id=f"{name}-{count}")


def stopping(name, message, weights="lora", count=-1, **changes):
    """A fault that ends the run with a message."""
    return pytest.param(name, count, weights, message, changes, id=f"{name}-stops" if weights == "lora" else name)


def slow(fault):
    """The fault takes the path of another one, which the integration tests have."""
    return pytest.param(*fault.values, id=fault.id, marks=pytest.mark.slow)


COOL = {"temperature": 0.7}
BRIEF = {"timeouts": QUICK | {"request": 6.0}, "retries": 1}  # a busy machine may take seconds for an answer
FAULTS = [
    slow(passing("http_429", 3)),
    slow(passing("http_500")),
    slow(passing("http_502", 2)),
    slow(passing("paused", 3)),
    slow(passing("dropped", 2)),
    slow(passing("truncated_body", 2)),
    slow(passing("truncated_json", 2)),
    slow(passing("html")),
    passing("slow", servers=BRIEF),
    slow(passing("aborted", 2)),
    passing("adapter_forgotten"),
    slow(passing("other_model")),
    slow(passing("old_version", 1, "folder")),
    stopping("http_400", "/inference/v1/generate returned HTTP 400: .*injected"),
    slow(stopping("http_404", "no vLLM server of version 0.33")),
    slow(stopping("http_429", "/inference/v1/generate returned HTTP 429: .*injected")),
    slow(stopping("dropped", "cannot be reached")),
    slow(stopping("slow", "/inference/v1/generate did not answer in", servers=BRIEF)),
    stopping("engine_dead", "/health returned HTTP 503"),
    slow(stopping("wrong_template", r"sample 'sample-.': http://.* reads its prompt as \d+ tokens and the trainer as")),
    slow(stopping("wrong_picture_size", "sample 'sample-.': .*min_pixels and max_pixels")),
    slow(stopping("prompt_cut", "sample 'sample-.': .*first difference is at .*, nothing there")),
    stopping("wrong_pixels", "before training has moved anything: .*another size of pictures"),
    slow(stopping("other_kernels", "before training has moved anything")),
    slow(stopping("raw_log_probs", "start it with --logprobs-mode processed_logprobs", **COOL)),
    slow(stopping("lora_binds_nothing", "computes as the base model does: .*binds to no module")),
    slow(stopping("lora_binds_half", "differ from the trainer's by")),
    slow(stopping("lora_refused", "/v1/load_lora_adapter returned HTTP 500: .*No free LoRA slot")),
    slow(stopping("adapter_forgotten", "The model `mmrl-.*` does not exist")),
    stopping("other_model", "it answered as 'lora', not as mmrl-"),
    slow(stopping("wrong_token_ids", "the log-probabilities of an answer are of other tokens")),
    slow(stopping("no_log_probs", "an answer has no log-probabilities")),
    slow(stopping("positive_log_prob", "a log-probability is above 0")),
    slow(stopping("sentinel_log_prob", "a log-probability is above 0, or no number")),
    slow(stopping("too_few_answers", "it sent . answers for the [24] of the request")),
    slow(stopping("answer_twice", "it sent . answers for the [24] of the request")),
    slow(stopping("aborted", "it ended an answer with 'abort'")),
    slow(stopping("cut_off", "an answer of 1 tokens was cut off")),
    slow(stopping("past_the_end", "an answer goes on after an end token|of . tokens was cut off")),
    slow(stopping("tokens_of_pictures", "contains a placeholder of pictures")),
    slow(stopping("half_update", "differ from the trainer's by", "folder")),
    stopping("old_weights", "its weights are stale", "folder"),
    stopping("stale_cache", "differ from the trainer's by", "folder"),
    slow(stopping("cache_is_held", "its prefix cache cannot be emptied", "folder")),
    slow(stopping("reload_fails", "/collective_rpc returned HTTP 500", "folder")),
    slow(stopping("version_ignored", "and reports", "folder")),
    slow(stopping("stays_paused", "HTTP 503: .*Generation is paused", "folder")),
    slow(stopping("no_version", "report no weight_versions", "folder")),
    slow(stopping("two_versions", "an answer was written by mmrl-.*, mmrl-later", "folder")),
    slow(stopping("old_version", "an answer was written by mmrl-0-of-another-run", "folder")),
]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "count", "weights", "message", "changes"), FAULTS)
def test_no_optimizer_step_learns_from_a_fault(
    server, folder_of, tmp_path, monkeypatch, name, count, weights, message, changes
):
    """The fault begins before the second iteration, and the first one is learnt from."""
    monkeypatch.setattr(group_dealing, "BACKOFF_S", 0.02)
    monkeypatch.setattr(vllm_client, "RESET_TRIES", 3)
    number = 0 if weights == "lora" else 1
    begins = 1
    if message is not None and "before training" in message:
        begins = 0

    def before(call):
        if call == begins:
            server.inject(number, **{name: count})

    outcome = run(server, folder_of, tmp_path, monkeypatch, weights, before, **changes)
    assert max(outcome.gaps, default=0.0) <= 1e-5
    if message is None:
        assert outcome.error is None
        assert outcome.rows == ITERATIONS * GROUPS * GROUP_SIZE
        return
    assert outcome.error is not None and re.search(message, outcome.error), outcome.error
    assert outcome.rows == begins * GROUPS * GROUP_SIZE
    assert [line["step"] for line in outcome.metrics()] == list(range(1, begins + 1))


def test_a_run_begins_with_a_line_about_each_server_and_not_at_all_without_one(server, folder_of, tmp_path, capsys):
    url = server.url_of("lora")
    lines = check_servers(served_config(folder_of("qwen3_vl"), tmp_path, {"urls": [url, "http://127.0.0.1:9"]}))
    assert lines[0] == f"server {url}: serves lora" or lines[0].startswith(f"server {url}: serves lora and ")
    assert lines[1].startswith("server http://127.0.0.1:9: no answer: /health cannot be reached")
    config = served_config(folder_of("qwen3_vl"), tmp_path, {"urls": ["http://127.0.0.1:9"]})
    with pytest.raises(ConfigError, match=r"run\.servers\.urls: no server answers: http://127\.0\.0\.1:9: "):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.integration
def test_the_dry_run_says_which_servers_answer(server, folder_of, tmp_path):
    config = served_config(folder_of("qwen3_vl"), tmp_path, {"urls": [server.url_of("lora"), "http://127.0.0.1:9"]})
    (tmp_path / "served.yaml").write_text(dump_config(config), encoding="utf-8")
    printed = CliRunner().invoke(app, ["train", str(tmp_path / "served.yaml"), "--dry-run"], env={"COLUMNS": "200"})
    assert printed.exit_code == 0
    assert "Servers of run.servers" in printed.stdout and "serves lora" in printed.stdout
    assert "no answer: /health" in printed.stdout
