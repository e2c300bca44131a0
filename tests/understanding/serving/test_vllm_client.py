"""The client: what it says of servers that refuse, its key, and vLLM's transfer of weights with a test's own sender."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx
import pytest

from mmrl.errors import ConfigError, RunError
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.serving.server_status import server_status
from mmrl.understanding.serving.vllm_client import VLLMClient
from mmrl.understanding.serving.weight_routes import TransferRoute
from tests.understanding.serving.stub_process import StubProcess
from tests.understanding.serving.test_served_engine import REQUESTS, gap, move, policy_of, settings

KEY = "sk-not-for-others-1234"


@pytest.fixture(scope="module")
def server(folder_of):
    """A server that asks for a key, and one for transfers of weights."""
    process = StubProcess({"tiny": folder_of("qwen3_vl"), "other": folder_of("qwen3_vl")}, key=KEY)
    process.wait()
    yield process
    process.kill()


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("TINY_KEY", KEY)


def failure(url, work, **changed):
    async def run():
        async with VLLMClient(url, settings(url, **changed)) as client:
            with pytest.raises(ServerFailure) as caught:
                await work(client)
            return caught.value

    return asyncio.run(run())


@pytest.mark.integration
def test_a_key_comes_from_a_variable_alone_and_is_in_no_message(server, monkeypatch, folder_of, tmp_path):
    with_key = settings(server.url, api_key_env="TINY_KEY")
    assert server_status(with_key) == [(server.url, True, "serves tiny")]
    policy = policy_of(folder_of("qwen3_vl"))
    policy.serve(with_key, tmp_path)
    server.inject(http_400=-1)
    with pytest.raises(RunError) as caught:
        policy.rollout(REQUESTS, seed=0)
    server.inject()
    assert "injected Bearer ***" in str(caught.value) and KEY not in str(caught.value)
    assert KEY not in repr(vars(policy.engine))
    refused = failure(server.url, lambda client: client.models())
    assert refused.kind == "http_401" and "run.servers.api_key_env names the variable" in str(refused)
    monkeypatch.setenv("TINY_KEY", "two words")
    with pytest.raises(ConfigError, match="TINY_KEY holds a space"):
        server_status(with_key)
    monkeypatch.delenv("TINY_KEY")
    with pytest.raises(ConfigError, match="environment variable TINY_KEY is not set"):
        policy.serve(with_key, tmp_path)


@pytest.mark.integration
def test_a_key_is_masked_before_a_message_is_shortened(server, monkeypatch):
    monkeypatch.setenv("TINY_KEY", KEY)
    content = (b"." * 295) + KEY.encode()
    client = VLLMClient(server.url, settings(server.url, api_key_env="TINY_KEY"))
    assert KEY[:5] not in str(client._refused("/v1/models", httpx.Response(400), content))


@pytest.mark.integration
def test_a_route_that_is_missing_says_how_the_server_is_started(server):
    async def call(client):
        client._timeouts = client._timeouts.model_copy(update={"update": 5.0})
        await client._send("POST", "/v1/load_lora_adapter/nowhere", {})

    found = failure(server.url, call, api_key_env="TINY_KEY")
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in str(found) and not found.transient

    async def call_dev(client):
        await client._send("POST", "/pause_nowhere")

    assert "VLLM_SERVER_DEV_MODE=1" in str(failure(server.url, call_dev, api_key_env="TINY_KEY"))


def test_no_server_and_a_silent_one_are_distinguished_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        started = time.monotonic()
        (_, answers, words), (_, others, refused) = server_status(
            settings(f"http://127.0.0.1:{port}", "http://127.0.0.1:9", timeouts={"connect": 0.5})
        )
        assert time.monotonic() - started < 5
    assert not answers and "did not answer in 0.5 s" in words
    assert not others and "cannot be reached" in refused


class FolderSender:
    """Sends by a folder, as NCCL does from GPU to GPU."""

    def __init__(self, policy, folder):
        self.policy, self.folder, self.calls = policy, folder, []

    def init_info(self, world_size):
        self.calls.append(f"init {world_size}")
        return {"master_address": "127.0.0.1", "world_size": 1 + world_size}

    def join(self):
        self.calls.append("join")

    def update_info(self):
        self.policy.write_weights(self.folder)
        return {"names": [], "folder": str(self.folder)}

    def send(self):
        self.calls.append("send")


@pytest.mark.integration
def test_the_transfer_of_weights_speaks_the_routes_of_vllm_in_their_order(server, folder_of, tmp_path):
    url = server.url_of("other")
    policy = policy_of(folder_of("qwen3_vl"), "full")
    policy.serve(settings(url, weights="folder", api_key_env="TINY_KEY"), tmp_path / "folders")
    sender = FolderSender(policy, tmp_path / "sent")
    policy.engine._route = TransferRoute({url: sender})
    for version in range(2):
        begun = len(server.log(1))
        rollout = policy.rollout(REQUESTS, seed=0)
        assert gap(policy, rollout) <= 1e-5
        requests = [path for path in server.log(1)[begun:] if path not in ("/weight_info", "/v1/models")]
        joined = ["/get_world_size", "/init_weight_transfer_engine"] if version == 0 else []
        assert requests[: requests.index("/inference/v1/generate")] == [
            "/update_weight_version",
            *joined,
            "/pause",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/reset_prefix_cache",
            "/reset_encoder_cache",
            "/reset_mm_cache",
            "/resume",
            "/update_weight_version",
        ]
        move(policy)
    assert sender.calls == ["init 1", "join", "send", "send"]
