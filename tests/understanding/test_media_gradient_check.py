"""A picture or video that a model does not look at is an error at the first update, not a silent loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_gif, as_png, frames, picture
from tests.understanding.tiny_vlms import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture
def policy(folder) -> VLMPolicy:
    return VLMPolicy.from_config(VLMConfig(model=str(folder), train="lora"), TokenSamplingConfig(max_new_tokens=4))


def samples() -> list[Sample]:
    return [
        Sample(id="two", prompt="which?", images=(as_png(picture(1)), as_png(picture(2)))),
        Sample(id="clip", prompt="and then?", videos=(as_gif(frames(3, 6)),)),
        Sample(id="sum", prompt="2+2"),
    ]


def replay(policy: VLMPolicy, chosen: list[Sample]) -> None:
    rollout = policy.rollout([RolloutRequest(sample, 2, number) for number, sample in enumerate(chosen)], seed=0)
    with torch.enable_grad():
        policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda now: now.log_probs.sum().backward())


def test_used_media_pass_with_a_frozen_tower(policy):
    replay(policy, samples())
    assert policy._checked_media == {(True, False), (False, True)}


@pytest.mark.parametrize("lost, named", [("pixel_values_videos", "clip"), ("pixel_values", "two")])
def test_ignored_media_raise_by_name(policy, lost, named):
    embed = {"pixel_values": "get_image_features", "pixel_values_videos": "get_video_features"}[lost]
    inner = policy.vlm.model.model
    real = getattr(inner, embed)
    setattr(inner, embed, lambda pixels, *rest, **more: real(torch.zeros_like(pixels), *rest, **more))
    with pytest.raises(DataError, match=f"'{named}'.*did not reach the loss"):
        replay(policy, samples())


def test_ignored_one_of_two_images_is_detected(policy):
    inner = policy.vlm.model.model
    real = inner.get_image_features

    def first_alone(pixels, grid, **more):
        patches = int(grid[0].prod())
        return real(torch.cat([pixels[:patches], torch.zeros_like(pixels[patches:])]), grid, **more)

    inner.get_image_features = first_alone
    with pytest.raises(DataError, match="'two'"):
        replay(policy, samples()[:1])


def test_text_rollouts_need_no_media_check(policy):
    replay(policy, samples()[2:])
    assert policy._checked_media == set()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("deepseek_vl_hybrid", tmp_path_factory.mktemp("deepseek_vl_hybrid"))


@pytest.mark.integration
@pytest.mark.parametrize("embed", ["get_low_res_image_features", "get_high_res_image_features"])
def test_ignored_second_resolution_is_detected(hybrid, embed):
    """Some models take an image twice, under two names: both must reach the loss."""
    policy = VLMPolicy.from_config(VLMConfig(model=str(hybrid)), TokenSamplingConfig(max_new_tokens=4))
    inner = policy.vlm.model.model
    real = getattr(inner, embed)
    setattr(inner, embed, lambda pixels, *rest, **more: real(torch.zeros_like(pixels), *rest, **more))
    with pytest.raises(DataError, match=r"'two'.*did not reach the loss"):
        replay(policy, samples()[:1])


@pytest.mark.integration
def test_ignored_one_of_two_images_is_detected_without_a_grid(folder_of):
    """Each row of pixels must reach the loss, where an image is one row."""
    policy = VLMPolicy.from_config(VLMConfig(model=str(folder_of("llava"))), TokenSamplingConfig(max_new_tokens=4))
    inner = policy.vlm.model.model
    real = inner.get_image_features

    def first_alone(pixel_values, *rest, **more):
        shortened = torch.cat([pixel_values[:1], torch.zeros_like(pixel_values[1:])])
        return real(shortened, *rest, **more)

    inner.get_image_features = first_alone
    with pytest.raises(DataError, match=r"'two'.*did not reach the loss"):
        replay(policy, samples()[:1])
