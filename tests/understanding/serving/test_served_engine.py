"""Rollouts by a server: ids and log-probabilities are those of the policy's own model, for each route of weights."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.data.sample import Sample
from mmrl.policy import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_png, picture
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
    timeouts = changed.pop("timeouts", {"connect": 2.0, "silence": 2.0, "request": 20.0, "update": 20.0})
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


@pytest.fixture(scope="module")
def server(folder_of):
    """Two servers: one for adapters, one for whole weights."""
    with stub(lora=folder_of("qwen3_vl"), folder=folder_of("qwen3_vl")) as process:
        yield process


@pytest.mark.parametrize(("train", "weights"), [("lora", "lora"), ("full", "folder")])
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
