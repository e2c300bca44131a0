"""Budgets are kept, and spend as much as they may."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.config.loading.load import parse_config
from mmrl.data.media.budget import ImageBudget, MediaBudget, VideoBudget, fit_image
from mmrl.errors import ConfigError

sides = st.integers(1, 5000)


@given(sides, sides, st.integers(1, 10**6))
def test_large_images_shrink_to_the_budget_with_their_aspect_ratio(width, height, most):
    new_width, new_height = ImageBudget(max_pixels=most).size(width, height)
    assert new_width * new_height <= most and new_width <= width and new_height <= height
    if width * height <= most:
        assert (new_width, new_height) == (width, height)
    elif min(new_width, new_height) > 1:
        scale = math.sqrt(most / (width * height))
        assert width * scale - 1 <= new_width and height * scale - 1 <= new_height


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 10**5))
def test_small_images_grow_to_the_minimum(width, height, least):
    new_width, new_height = ImageBudget(min_pixels=least, max_pixels=10**9).size(width, height)
    assert new_width * new_height >= least
    if width * height < least:
        assert new_width <= width * math.sqrt(least / (width * height)) + 1


def test_image_sizes_by_hand():
    assert ImageBudget(max_pixels=100 * 50).size(400, 200) == (100, 50)
    assert ImageBudget(min_pixels=400 * 200).size(100, 50) == (400, 200)
    assert VideoBudget(max_pixels=10**6, total_pixels=8 * 100 * 50).size(400, 200, frames=8) == (100, 50)
    assert VideoBudget(max_pixels=100 * 50).size(400, 200, frames=8) == (100, 50)


def test_images_without_a_budget_are_unchanged():
    picture = Image.effect_noise((40, 20), 50).convert("RGB")
    assert fit_image(picture, ImageBudget()) is picture
    small = fit_image(picture, ImageBudget(max_pixels=200))
    assert small.size == (20, 10) and abs(np.asarray(small).mean() - np.asarray(picture).mean()) < 2


@given(st.integers(1, 3000), st.floats(0.5, 60), st.floats(0.1, 30), st.integers(1, 8), st.integers(8, 64))
def test_frames_are_spread_from_the_first_to_the_last(total, rate, fps, least, most):
    frames = VideoBudget(fps=fps, min_frames=least, max_frames=most).frames(total, rate)
    assert frames == sorted(set(frames)) and frames[0] >= 0 and frames[-1] < total
    assert min(least, total) <= len(frames) <= min(most, total)
    requested = round(total / rate * fps)
    if min(least, total) <= requested <= min(most, total):
        assert len(frames) == requested
    if len(frames) > 1:
        assert (frames[0], frames[-1]) == (0, total - 1)
        steps = np.diff(frames)
        assert steps.max() - steps.min() <= 1 or np.isclose(steps.mean(), (total - 1) / (len(frames) - 1))


def test_frame_counts_by_hand():
    budget = VideoBudget(fps=2, min_frames=1, max_frames=5)
    assert budget.frames(total=16, rate=8) == [0, 5, 10, 15]  # 2 seconds
    assert budget.frames(total=160, rate=8) == [0, 40, 80, 119, 159]  # 20 seconds, at most 5
    assert budget.frames(total=5, rate=30) == [2]  # a moment: its middle
    assert VideoBudget(fps=2, min_frames=4).frames(total=3, rate=30) == [0, 1, 2]  # all that it has


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: ImageBudget(min_pixels=9, max_pixels=8), "min_pixels is 9 and max_pixels 8"),
        (lambda: VideoBudget(fps=0), "fps is 0"),
        (lambda: VideoBudget(min_frames=9, max_frames=8), "min_frames is 9"),
        (lambda: VideoBudget(max_frames=9, total_pixels=8), "total_pixels >= max_frames = 9"),
    ],
)
def test_budgets_below_one_image_are_rejected(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()


RUN = "{name: a, policy: {kind: vlm, model: m}, data: {path: d}, media: %s}"


def test_media_budget_of_a_config_equals_the_defaults_and_its_settings():
    config = parse_config(RUN % "{}", "test").media
    assert MediaBudget.of(config) == MediaBudget()
    changed = parse_config(RUN % "{image: {max_pixels: 4000}, video: {fps: 1.5, max_frames: 7}}", "test").media
    assert MediaBudget.of(changed) == MediaBudget(ImageBudget(max_pixels=4000), VideoBudget(fps=1.5, max_frames=7))
    assert MediaBudget.of(changed).digest() != MediaBudget().digest() == MediaBudget.of(config).digest()


@pytest.mark.parametrize(
    "media, problem",
    [
        ("{image: {min_pixels: 9, max_pixels: 8}}", r"media.image.*min_pixels \(9\) at most max_pixels \(8\)"),
        ("{video: {min_frames: 9, max_frames: 8}}", r"media.video.*min_frames \(9\) at most max_frames \(8\)"),
        ("{video: {total_pixels: 8}}", r"total_pixels \(8\) at least max_frames \(64\)"),
        ("{video: {decoder: opencv}}", "media.video.decoder: got 'opencv', expected auto or decord or pyav"),
        ("{on_error: swap}", "media.on_error: got 'swap', expected fail or exclude"),
    ],
)
def test_invalid_budgets_are_config_errors(media, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_config(RUN % media, "test")
