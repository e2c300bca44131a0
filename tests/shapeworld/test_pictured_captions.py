"""Captions with true pictures, the distance of two pictures, and the kernel distance of sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmrl.data.media.decode import load_image
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld import pictured_captions
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.pictured_captions import KernelDistance, ShapeDistance


def pictures_of(split, count):
    return [load_image(s.demonstration["image"], s.id) for s in pictured_captions.samples(split)[:count]]


def scores(pictures):
    output = KernelDistance().score([RewardInput(str(n), group=n, prompt="", image=p) for n, p in enumerate(pictures)])
    return output.values["shapeworld_kid"]


@pytest.mark.slow
def test_every_true_picture_shows_its_caption():
    for sample in pictured_captions.samples("pictured-development")[:32]:
        picture = load_image(sample.demonstration["image"], sample.id)
        assert judge(picture, Caption.from_dict(sample.answer)).strict
    splits = [pictured_captions.samples(name) for name in pictured_captions.NAMES]
    assert len({sample.id for split in splits for sample in split}) == sum(map(len, splits))


@pytest.mark.slow
def test_the_kernel_distance_is_the_unbiased_one_of_whole_sets():
    pictures = pictures_of("pictured-validation", 40)
    found = scores(pictures)
    true, centre, spread = pictured_captions._true_features()
    made = (pictured_captions._features(pictures) - centre) / spread
    kernel = lambda x, y: (x @ y.T / x.shape[1] + 1) ** 3  # noqa: E731
    own, among, between = kernel(made, made), kernel(true, true), kernel(made, true)
    pairs = lambda k: (k.sum() - np.trace(k)) / (len(k) * (len(k) - 1))  # noqa: E731
    assert found.mean() == pytest.approx(pairs(own) + pairs(among) - 2 * between.mean(), rel=1e-4, abs=1e-5)


def test_true_pictures_are_near_and_darker_ones_are_not():
    pictures = pictures_of("pictured-validation", 128)
    near = scores(pictures).mean()
    assert scores([picture.point(lambda value: value * 0.8) for picture in pictures]).mean() > near + 0.15
    lone = KernelDistance().score([RewardInput("0", group=0, prompt="", image=pictures[0])])
    assert np.isnan(lone.values["shapeworld_kid"]).all()


@pytest.mark.integration
def test_the_distance_is_0_for_equal_pictures_grows_with_a_change_and_has_a_gradient():
    distance = ShapeDistance("cpu")
    pictures = torch.stack(
        [torch.from_numpy(np.asarray(p, np.float32) / 255) for p in pictures_of("pictured-train", 2)]
    )
    pictures = pictures.permute(0, 3, 1, 2)
    moved = (pictures + 0.1).requires_grad_()
    assert distance.compare(pictures, pictures).abs().max() < 1e-6
    small, large = distance.compare(pictures + 0.02, pictures), distance.compare(moved, pictures)
    assert (small > 0).all() and (small < large).all()
    large.sum().backward()
    assert moved.grad.abs().sum() > 0
    assert distance.compare(pictures, pictures.flip(0)).min() > large.max()
