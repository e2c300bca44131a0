"""Requests to vLLM and its replies, against vLLM itself where it is installed.

vLLM's wheel needs CUDA to generate, and is no dependency: without it these tests are skipped. Its request and reply
classes and its routers import without a GPU; the last test runs `vllm serve` and needs one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
import torch
import uvicorn

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.serving.generate_messages import (
    AnswerTokens,
    GroupCall,
    WeightName,
    read_answers,
    request_body,
)
from mmrl.understanding.serving.vllm_client import VLLMClient
from tests.understanding.serving.test_served_engine import SAMPLES, gap, move, policy_of, settings

vllm = pytest.importorskip("vllm", reason="vLLM is not installed: it needs CUDA, and an environment for itself")

pytestmark = pytest.mark.filterwarnings("ignore")  # of what vLLM imports
MODEL = os.environ.get("MMRL_VLLM_MODEL", "Qwen/Qwen2.5-VL-3B-Instruct")
"""A model that vLLM serves; the tiny ones of these tests have heads that are too small for its kernels."""


@pytest.fixture
def call(vlm_of):
    vlm = vlm_of("qwen3_vl")
    prompt = PromptEncoder(vlm, MediaReader(MediaBudget()), keep_media=True).encode(SAMPLES[0])
    return vlm, GroupCall(prompt, 2, TokenSamplingConfig(temperature=0.8, max_new_tokens=3), seed=7)


def test_a_request_is_one_of_vllm(call):
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    vlm, group = call
    found = GenerateRequest.model_validate(request_body(group, AnswerTokens.of(vlm), "tiny"))
    wanted = found.sampling_params
    assert (wanted.n, wanted.temperature, wanted.max_tokens, wanted.seed, wanted.logprobs) == (2, 0.8, 3, 7, 0)
    assert (wanted.top_p, wanted.top_k, wanted.min_p, wanted.repetition_penalty) == (1.0, 0, 0.0, 1.0)
    assert wanted.logit_bias == {token: -100.0 for token in vlm.suppressed.tolist()}
    assert wanted.stop_token_ids == vlm.ends.tolist()
    assert found.token_ids == list(group.wire.token_ids) and found.return_token_ids
    assert [part["type"] for part in found.content_parts] == ["image_url"]


def test_a_reply_of_vllm_is_read(call):
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
        GenerateLogProbs,
        GenerateLogProbsContent,
        GenerateTokensChoice,
        GenerateTokensResponse,
    )
    from vllm.outputs import WeightVersionSpan

    vlm, group = call
    answers = [[5, 6, 7], [8, int(vlm.ends[0])]]
    choices = [
        GenerateTokensChoice(
            index=number,
            token_ids=ids,
            finish_reason="length" if len(ids) == 3 else "stop",
            logprobs=GenerateLogProbs(content=[GenerateLogProbsContent(token_id=i, logprob=-0.5) for i in ids]),
            weight_versions=[WeightVersionSpan("mmrl-1", 0, len(ids))],
        )
        for number, ids in enumerate(answers)
    ]
    prompt = group.prompt.inputs["input_ids"][0].tolist()
    reply = GenerateTokensResponse(model="tiny", choices=choices[::-1], prompt_token_ids=prompt).model_dump(mode="json")
    found = read_answers(reply, group, AnswerTokens.of(vlm), WeightName("tiny", "mmrl-1"), "http://x")
    assert found.token_ids == answers
    assert found.log_probs == [[-0.5] * 3, [-0.5] * 2]


class RecordingEngine:
    """An engine behind vLLM's routers that records its calls."""

    def __init__(self):
        self.calls = []
        self.version = "default"
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(world_size_across_dp=2, world_size=2))

    def __getattr__(self, name):
        async def record(*arguments, **named):
            self.calls.append((name, arguments, named))
            if name == "update_weight_version":
                (self.version,) = arguments
            return {"get_weight_version": self.version, "reset_prefix_cache": True}.get(name)

        return record


def test_the_routes_of_weights_are_those_of_vllm():
    from fastapi import FastAPI
    from vllm.entrypoints.rl.online.api_router import router as rl
    from vllm.entrypoints.serve.dev.cache.api_router import router as caches
    from vllm.entrypoints.serve.dev.rpc.api_router import router as rpc

    app, engine = FastAPI(), RecordingEngine()
    app.state.engine_client = engine
    for router in (rl, caches, rpc):
        app.include_router(router)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    async def work():
        url = f"http://127.0.0.1:{port}"
        async with VLLMClient(url, settings(url, timeouts={"update": 60.0})) as client:
            while not server.started:
                await asyncio.sleep(0.05)
            assert await client.world_size() == 2
            await client.init_weight_transfer_engine({"master_address": "127.0.0.1"})
            await client.pause()
            await client.start_weight_update()
            await client.update_weights({"names": ["a"]})
            await client.finish_weight_update("mmrl-updating")
            await client.reload_weights("/weights/mmrl-1")
            await client.reset_caches()
            await client.reset_caches(running=True)
            await client.resume()
            await client.name_version("mmrl-1")
            assert await client.version() == "mmrl-1"

    asyncio.run(work())
    server.should_exit = True
    thread.join()
    calls = {name: (arguments, named) for name, arguments, named in engine.calls}
    assert calls["init_weight_transfer_engine"][0][0].init_info == {"master_address": "127.0.0.1"}
    assert calls["pause_generation"][1]["mode"] == "keep"
    resets = [arguments for name, arguments, _ in engine.calls if name == "reset_prefix_cache"]
    assert resets == [(False, False), (True, False)]  # of running requests, of an external cache
    assert calls["update_weights"][1]["request"].update_info == {"names": ["a"]}
    assert calls["finish_weight_update"][0] == ("mmrl-updating",)
    assert calls["collective_rpc"][1]["method"] == "reload_weights"
    assert calls["collective_rpc"][1]["kwargs"] == {"weights_path": "/weights/mmrl-1"}
    expected = ["start_weight_update", "reset_encoder_cache", "reset_mm_cache", "resume_generation"]
    assert all(name in calls for name in expected)


def test_adapters_are_loaded_as_vllm_wants():
    from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest

    sent = []

    class Recorder(VLLMClient):
        async def _send(self, method, path, body=None, timeout_s=30.0):
            sent.append(body)
            return b""

    async def work():
        async with Recorder("http://127.0.0.1:9", settings("http://127.0.0.1:9")) as client:
            await client.load_lora("mmrl-1", "/served/mmrl-1")
            await client.unload_lora("mmrl-1")

    asyncio.run(work())
    assert LoadLoRAAdapterRequest.model_validate(sent[0]).lora_path == "/served/mmrl-1"
    assert UnloadLoRAAdapterRequest.model_validate(sent[1]).lora_name == "mmrl-1"


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="vllm serve needs a GPU")
@pytest.mark.skipif(shutil.which("vllm") is None, reason="there is no command vllm")
def test_a_real_server_is_proven_at_two_versions(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["vllm", "serve", MODEL, "--port", str(port), "--dtype", "bfloat16", "--enable-lora"]
    command += ["--max-lora-rank", "32", "--logprobs-mode", "processed_logprobs", "--gpu-memory-utilization", "0.5"]
    switches = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    process = subprocess.Popen(command, env=os.environ | switches)
    try:
        url, last = f"http://127.0.0.1:{port}", time.monotonic() + 600
        while True:
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None and time.monotonic() < last
                time.sleep(2)
        policy = policy_of(MODEL)
        policy.serve(settings(url, timeouts={}, max_probe_gap=0.1), tmp_path)
        for _ in range(2):
            rollout = policy.rollout([RolloutRequest(sample, 4, n) for n, sample in enumerate(SAMPLES)], seed=0)
            assert gap(policy, rollout) < 0.1
            move(policy, by=0.002)
    finally:
        process.terminate()
        process.wait(60)
