"""A model behind an OpenAI-style server in comparisons: it answers as the same model does in process."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from mmrl.build.model_references import resolve_model
from mmrl.build.policies import build_policy
from mmrl.cli import app
from mmrl.config.media import MediaConfig
from mmrl.config.policy import ServedVLMConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError, RunError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.serving.chat_policy import ChatPolicy
from tests.understanding.media import as_gif, frames
from tests.understanding.serving.test_served_engine import REQUESTS, SAMPLES, policy_of

GREEDY = TokenSamplingConfig(temperature=0.0, max_new_tokens=6)
WARM = TokenSamplingConfig(max_new_tokens=6)


@pytest.fixture(autouse=True)
def _no_faults(server):
    yield
    server.inject()


def chat(server, sampling=GREEDY, model="lora"):
    return ChatPolicy(ServedVLMConfig(model=model, url=server.url_of("lora")), sampling, MediaConfig())


@pytest.mark.integration
def test_greedy_answers_are_those_of_the_model_in_process(server, folder_of):
    own = policy_of(folder_of("qwen3_vl"), sampling=GREEDY).rollout(REQUESTS, seed=0)
    served = chat(server).rollout(REQUESTS, seed=0)
    assert served.media == own.media
    assert [sample.id for sample in served.samples] == [sample.id for sample in own.samples]
    assert served.group_index.tolist() == own.group_index.tolist()
    assert served.log_probs.shape == (9, 0) and served.token_ids is None


@pytest.mark.integration
def test_answers_differ_within_a_group_and_repeat_with_the_seed(server):
    requests = [RolloutRequest(SAMPLES[0], 6, 0)]
    first, again, other = (chat(server, WARM).rollout(requests, seed=seed).media for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) > 1


@pytest.mark.integration
def test_passing_failures_are_tried_again_and_others_name_the_server(server):
    server.inject(chat_429=2)
    assert chat(server).rollout(REQUESTS[:1], seed=0).media
    server.inject(chat_refusal=-1)
    with pytest.raises(RunError, match=r"lora at http://127.0.0.1:\d+.*returned no text.*refusal"):
        chat(server).rollout(REQUESTS[:1], seed=0)
    with pytest.raises(RunError, match="The model `else` does not exist"):
        chat(server, model="else").rollout(REQUESTS[:1], seed=0)
    clip = Sample("clip", prompt="What?", videos=(as_gif(frames(0, 4)),))
    with pytest.raises(DataError, match="sample 'clip' holds a video"):
        chat(server).rollout([RolloutRequest(clip, 1, 0)], seed=0)


def test_a_server_is_named_after_the_model_and_is_never_trained(server):
    found = resolve_model("org/name@http://127.0.0.1:8000", "pipeline", "TINY_KEY")
    assert found.policy == ServedVLMConfig(model="org/name", url="http://127.0.0.1:8000", api_key_env="TINY_KEY")
    with pytest.raises(ConfigError, match="the address of the server alone, without /v1"):
        resolve_model("name@http://127.0.0.1:8000/v1")
    with pytest.raises(ConfigError, match="behind a server, which `mmrl evaluate` compares"):
        build_policy(VLMConfig(model="name@http://127.0.0.1:8000"), GREEDY)


@pytest.mark.slow
def test_a_comparison_with_a_model_in_process_says_what_is_not_known(server, folder_of, tmp_path):
    lines = [
        json.dumps(asdict(Sample(each.id, prompt=each.prompt, images=each.images, answer="x"))) for each in SAMPLES
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    served = f"lora@{server.url_of('lora')}"
    result = CliRunner().invoke(
        app,
        [
            *("evaluate", str(folder_of("qwen3_vl")), served, "--kind", "vlm", "--data", str(tmp_path / "data.jsonl")),
            *("--reward", "multiple_choice", "--out", str(tmp_path / "out")),
        ],
    )
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert f"{served} answers from a server: its weights are not known" in words
    report = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(report["subjects"]) == {str(folder_of("qwen3_vl")), served}
