"""Rollouts by a server: ids and log-probabilities are those of the policy's own model, for each route of weights."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.data.sample import Sample
from mmrl.errors import DataError, RunError
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_gif, as_png, frames, picture
from tests.understanding.serving.stub_process import stub

SAMPLES = (
    Sample("seen", prompt="What?", images=(as_png(picture(1)),)),
    Sample("said", prompt="Two and two?"),
    Sample("large", prompt="<image> And this?", images=(as_png(picture(2, 48, 40)),)),
)
REQUESTS = [RolloutRequest(sample, 3, group) for group, sample in enumerate(SAMPLES)]
WARM = TokenSamplingConfig(max_new_tokens=8)


def policy_of(folder, train="lora", sampling=WARM):
    torch.manual_seed(0)
    return VLMPolicy.from_config(VLMConfig(model=str(folder), device="cpu", train=train), sampling)


def settings(*urls, weights="lora", **changed):
    timeouts = changed.pop("timeouts", {"connect": 10.0, "silence": 60.0, "request": 60.0, "update": 60.0})
    return ServersConfig(urls=urls, weights=weights, timeouts=timeouts, **changed)


@torch.no_grad()
def move(policy, by=0.02, seed=0):
    """Change the trained parameters as an update does."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters_to_train().values():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=by)
    policy.version += 1


@torch.no_grad()
def gap(policy, rollout):
    return (policy.score_recording(rollout.recording) - rollout.log_probs).abs()[rollout.mask].mean().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "weights"), [("lora", "lora"), pytest.param("full", "folder", marks=pytest.mark.slow)]
)
def test_a_served_rollout_has_the_log_probs_of_the_trainer_at_every_version(
    server, folder_of, tmp_path, train, weights
):
    policy = policy_of(folder_of("qwen3_vl"), train)
    policy.serve(settings(server.url_of(weights), weights=weights), tmp_path)
    for version in range(3):
        rollout = policy.rollout(REQUESTS, seed=version)
        assert rollout.policy_version == version
        assert rollout.group_index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert gap(policy, rollout) <= 1e-5
        metrics = policy.rollout_metrics()
        assert metrics["served/probe_gap"] <= 1e-5
        if version:
            assert metrics["served/probe_share"] == pytest.approx(1.0, abs=1e-2)
        move(policy)


@pytest.mark.slow
def test_a_copy_of_a_policy_has_an_engine_of_its_own(server, folder_of, tmp_path):
    """As asynchronous training makes one: it is sampled from in another thread, while the first one learns."""
    policy = policy_of(folder_of("qwen3_vl"))
    policy.serve(settings(server.url_of("lora")), tmp_path)
    policy.rollout(REQUESTS, seed=0)
    sampler = copy.deepcopy(policy)
    move(policy)
    for _ in range(2):  # they alternate: each finds its own version, and gives it to the server where it is missing
        with ThreadPoolExecutor(1) as thread:
            old = thread.submit(sampler.rollout, REQUESTS, 1).result()
        new = policy.rollout(REQUESTS, seed=1)
        assert (old.policy_version, new.policy_version) == (0, 1)
        assert gap(sampler, old) <= 1e-5 and gap(policy, new) <= 1e-5
        assert gap(policy, old) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "weights"), [pytest.param("lora", "lora", marks=pytest.mark.slow), ("full", "folder")]
)
def test_the_reference_is_served_too_and_other_weights_of_one_version_are_distinguished(
    server, folder_of, tmp_path, train, weights
):
    """Evaluations exchange parameters for their moving average, without a new version number."""
    policy = policy_of(folder_of("qwen3_vl"), train)
    policy.serve(settings(server.url_of(weights), weights=weights), tmp_path)
    move(policy)
    with policy.reference():
        base = policy.rollout(REQUESTS, seed=0)
        assert gap(policy, base) <= 1e-5
    assert gap(policy, base) > 1e-3
    first = policy.rollout(REQUESTS, seed=0)
    move(policy)
    policy.version -= 1
    second = policy.rollout(REQUESTS, seed=0)
    assert gap(policy, second) <= 1e-5 < 1e-3 < gap(policy, first)


@pytest.mark.slow
def test_prefixes_follow_the_prompt_and_samplings_of_requests_count(server, folder_of, tmp_path):
    policy = policy_of(folder_of("qwen3_vl"))
    policy.serve(settings(server.url_of("lora")), tmp_path)
    greedy = TokenSamplingConfig(max_new_tokens=5, temperature=0.0)
    requests = [RolloutRequest(sample, 2, 0, start=RowStart(prefix="I see "), sampling=greedy) for sample in SAMPLES]
    served = policy.rollout(requests, seed=0)
    expected = policy_of(folder_of("qwen3_vl")).rollout(requests, seed=0)
    assert served.token_ids == expected.token_ids
    assert served.media == expected.media
    assert all(text.startswith("I see ") for text in served.media)


@pytest.mark.slow
def test_old_adapters_are_unloaded_and_old_folders_removed(server, folder_of, tmp_path):
    policy = policy_of(folder_of("qwen3_vl"))
    policy.serve(settings(server.url_of("lora")), tmp_path)
    for _ in range(4):
        policy.rollout(REQUESTS[:1], seed=0)
        move(policy)
    loaded = [card["id"] for card in httpx.get(f"{server.url_of('lora')}/v1/models").json()["data"] if card["parent"]]
    run = policy.engine._folders.run
    assert [name.rpartition("-")[0] for name in loaded if name.startswith(run)] == [f"{run}-2", f"{run}-3"]
    assert sorted(path.name.rpartition("-")[0] for path in tmp_path.iterdir()) == [f"{run}-2", f"{run}-3"]


@pytest.mark.integration
def test_videos_are_sent_whose_frames_have_the_times_that_a_server_assumes(server, folder_of, tmp_path):
    policy = policy_of(folder_of("qwen3_vl"))
    policy.serve(settings(server.url_of("lora")), tmp_path)
    move(policy)
    clip = Sample("clip", prompt="What?", videos=(as_gif(frames(3, 6)),))
    assert gap(policy, policy.rollout([RolloutRequest(clip, 3, 0)], seed=0)) <= 1e-5
    slow = Sample("slow", prompt="What?", videos=(as_gif(frames(3, 6), seconds=3.0),))
    with pytest.raises(DataError, match=r"sample 'slow' holds a video, and Qwen3VLProcessor reads the times of its"):
        policy.rollout([RolloutRequest(slow, 3, 0)], seed=0)


@pytest.mark.slow
def test_another_rate_of_frames_is_found_by_the_proof(server, folder_of, tmp_path):
    """Qwen2.5-VL counts positions by it, and has it in no token."""
    with stub(tiny=folder_of("qwen2_5_vl")) as process:
        process.inject(wrong_rate=-1)
        policy = policy_of(folder_of("qwen2_5_vl"))
        policy.serve(settings(process.url, probes=2), tmp_path)
        clip = Sample("clip", prompt="What?", videos=(as_gif(frames(3, 6)),))
        with pytest.raises(RunError, match="before training has moved anything"):
            policy.rollout([*REQUESTS, RolloutRequest(clip, 3, 3)], seed=0)


def test_announced_calls_are_generated_at_once_and_are_the_same(server, folder_of, tmp_path):
    policy = policy_of(folder_of("qwen3_vl"))
    policy.serve(settings(server.url_of("lora")), tmp_path)
    calls = [([request], 10 + number) for number, request in enumerate(REQUESTS)]
    plain = [policy.rollout(requests, seed) for requests, seed in calls]
    policy.announce(calls)
    sent = server.log().count("/inference/v1/generate")
    announced = [policy.rollout(requests, seed) for requests, seed in calls]
    assert server.log().count("/inference/v1/generate") == sent
    assert [each.token_ids for each in announced] == [each.token_ids for each in plain]
    again = policy.rollout(*calls[0])  # an announced call is made once
    assert server.log().count("/inference/v1/generate") == sent + 1
    assert again.token_ids == plain[0].token_ids
    policy.announce(calls)
    move(policy)
    fresh = policy.rollout(*calls[0])  # with other weights, nothing announced counts
    assert gap(policy, fresh) <= 1e-5
