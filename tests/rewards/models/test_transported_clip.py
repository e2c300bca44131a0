"""Optimal transport of texts onto real media: the closed form, what must not matter, and the reward on clips."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.models.optimal_transport import GaussianTransport
from mmrl_shapeworld.shipped_models import CLIP
from mmrl_shapeworld.transported_clips import ShapeTransportedCLIP, flickering_clips, real_clips
from tests.rewards.models.tiny_models import picture

TINY = 1e-9


def drawn(count: int, seed: int, width: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) @ torch.randn(
        width, width, generator=generator, dtype=torch.float64
    ) + torch.randn(width, generator=generator, dtype=torch.float64)


def test_along_a_line_means_and_deviations_are_matched():
    """By hand: from mean 1 and deviation 1 to mean 10 and deviation 3, 2 goes to 13, and half of the way to 7.5."""
    source, target = torch.tensor([[0.0], [2.0]]), torch.tensor([[7.0], [13.0]])
    transport = GaussianTransport.fit(source, target, TINY)
    assert transport(torch.tensor([[2.0]])).item() == pytest.approx(13, abs=1e-4)
    assert transport(torch.tensor([[2.0]]), share=0.5).item() == pytest.approx(7.5, abs=1e-4)
    assert transport(torch.tensor([[2.0]]), share=0.0).item() == 2.0


def test_the_way_is_the_distance_of_bures_and_no_other_matching_map_is_shorter():
    source, target = drawn(400, 0), drawn(300, 1)
    transport = GaussianTransport.fit(source, target, TINY)
    arrived = transport(source)
    torch.testing.assert_close(arrived.mean(0), target.mean(0))
    torch.testing.assert_close(torch.cov(arrived.T, correction=0), torch.cov(target.T, correction=0))
    first, second = (torch.cov(each.T, correction=0).numpy() for each in (source, target))
    root = np.real(sqrtm(first))
    bures = np.trace(first + second - 2 * np.real(sqrtm(root @ second @ root)))
    shift = (source.mean(0) - target.mean(0)).square().sum()
    assert (arrived - source).square().sum(1).mean().item() == pytest.approx(float(shift) + bures, rel=1e-6)
    other = torch.from_numpy(np.real(sqrtm(second)) @ np.linalg.inv(root)).T  # it matches the covariance, too
    turned = target.mean(0) + (source - source.mean(0)) @ other
    torch.testing.assert_close(torch.cov(turned.T, correction=0), torch.cov(target.T, correction=0))
    assert (turned - source).square().sum(1).mean() > (arrived - source).square().sum(1).mean() + 1e-3


def test_pairs_do_not_matter_and_a_shift_of_all_targets_shifts_what_arrives():
    source, target = drawn(50, 2), drawn(60, 3)
    there = GaussianTransport.fit(source, target, 0.1)(source)
    torch.testing.assert_close(GaussianTransport.fit(source, target.flip(0), 0.1)(source), there)
    torch.testing.assert_close(GaussianTransport.fit(source, target + 5, 0.1)(source), there + 5)


@pytest.fixture(scope="module")
def clips():
    return flickering_clips(0)


def scores(reward, items) -> np.ndarray:
    return reward.score(items).values[reward.name]


@pytest.mark.integration
def test_without_transport_it_is_the_cosine_and_a_video_is_the_mean_of_its_frames(clips):
    plain = ShapeTransportedCLIP(share=0.0, device="cpu")
    images = [RewardInput("a", 0, "a red circle", image=picture(seed)) for seed in range(4)]
    cosines = scores(load("clip_score", model=str(CLIP), device="cpu"), images) / 2.5
    np.testing.assert_allclose(scores(plain, images).clip(0), cosines, atol=1e-5)
    still = [RewardInput("a", 0, "a red circle", video=[each.image] * 3) for each in images]
    np.testing.assert_allclose(scores(plain, still), scores(plain, images), atol=1e-5)


@pytest.mark.slow
def test_transport_follows_the_share_of_right_frames(clips):
    """And another prompt's clips, a negative control, are worth less."""
    reward = ShapeTransportedCLIP(device="cpu")
    found = scores(reward, clips.inputs)
    means = [found[clips.truth == share].mean() for share in np.unique(clips.truth)]
    assert np.all(np.diff(means) > 0.01)
    whole = [each for each, share in zip(clips.inputs, clips.truth, strict=True) if share == 1]
    prompts = [each.prompt for each in whole]
    swapped = [RewardInput("a", 0, text, video=each.video) for text, each in zip(prompts[5:], whole, strict=False)]
    assert scores(reward, swapped).mean() < found[clips.truth == 1].mean() - 0.2


@pytest.mark.integration
def test_real_media_are_read_from_a_file(tmp_path, clips):
    rows = []
    for number, (text, frames) in enumerate(real_clips()[:12]):
        frames[0].save(tmp_path / f"{number}.png")
        rows.append({"id": str(number), "prompt": text, "images": [f"{number}.png"]})
    file = tmp_path / "real.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [(text, frames[:1]) for text, frames in real_clips()[:12]]
    by_file, in_python = (load("transported_clip", real=real, model=str(CLIP)) for real in (str(file), pairs))
    np.testing.assert_allclose(scores(by_file, clips.inputs[:6]), scores(in_python, clips.inputs[:6]), atol=1e-6)
    assert [each.path for each in by_file.weight_files()][-1] == str(file)  # a cache tells other media apart


@pytest.mark.integration
def test_errors_say_what_was_expected(tmp_path):
    with pytest.raises(RewardError, match="real has 3 media; it needs at least 8"):
        load("transported_clip", real=real_clips()[:3], model=str(CLIP))
    with pytest.raises(RewardError, match=r"share is 2 and ridge 0.1; expected \[0, 1\] and above 0"):
        load("transported_clip", real=real_clips()[:9], model=str(CLIP), share=2)
    file = tmp_path / "real.jsonl"
    file.write_text('{"id": "a", "prompt": "a red circle"}\n')
    with pytest.raises(RewardError, match="sample 'a' must have one image or one video"):
        load("transported_clip", real=str(file), model=str(CLIP))
    with pytest.raises(RewardError, match=r"real: .*absent\.jsonl"):
        load("transported_clip", real=str(tmp_path / "absent.jsonl"), model=str(CLIP))
    reward = load("transported_clip", real=real_clips()[:9], model=str(CLIP), device="cpu")
    assert reward.score([RewardInput("a", 0, "a red circle", text="red")]).status[reward.name] == [Status.ERROR]
