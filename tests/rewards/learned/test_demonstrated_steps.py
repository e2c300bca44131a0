"""Steps of demonstrations, the features that tell them apart, and the progress of an image through them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.learned.demonstrated_steps import (
    TaskStep,
    discriminative_features,
    learn_steps,
    split_steps,
    step_progress,
)
from mmrl_shapeworld.shipped_models import CLIP, OPEN_CLIP


def spread_within(frames, cuts):
    return sum(np.square(part - part.mean(0)).sum() for part in np.split(frames, cuts))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_cuts_are_the_best_of_all(steps):
    rng = np.random.default_rng(steps)
    for _ in range(20):
        frames = rng.normal(size=(8, 3))
        every = [list(cuts) for cuts in itertools.combinations(range(1, 8), steps - 1)]
        best = min(spread_within(frames, cuts) for cuts in every)
        found = split_steps(frames, steps)
        assert len(found) == steps - 1 and spread_within(frames, found) == pytest.approx(best)


def test_cuts_lie_between_the_levels():
    assert split_steps(np.repeat([[0.0], [3.0], [9.0]], [2, 5, 3], axis=0), 3) == [2, 7]
    with pytest.raises(ValueError, match="2 frames cannot be split into 3 steps"):
        split_steps(np.zeros((2, 1)), 3)


def test_features_that_differ_and_hardly_vary_come_first():
    inside = np.array([[1.0, 5.0, 0.0], [1.0, -5.0, 0.1]])
    outside = np.array([[0.0, 5.0, 0.0], [0.0, -3.0, 0.1]])
    assert discriminative_features(inside, outside, 3).tolist() == [0, 2, 1]  # scores 5, -0.1 and -4


def test_noise_features_are_left_out_of_the_learnt_steps():
    rng = np.random.default_rng(0)
    levels = np.repeat([[0.0], [1.0], [2.0]], 5, axis=0)
    demonstrations = [np.hstack([levels, 0.01 * rng.normal(size=(15, 6))]) + rng.normal(0, 0.01) for _ in range(3)]
    steps = learn_steps(demonstrations, 3, 1)
    assert steps[0].features.tolist() == steps[2].features.tolist() == [0]
    assert steps[2].mean[0] == pytest.approx(2, abs=0.05) and (steps[2].deviation > 0).all()
    assert len(learn_steps(demonstrations, 3, None)[1].features) == 7


def test_progress_by_hand():
    steps = [TaskStep(np.array([0]), np.array([float(level)]), np.array([0.5])) for level in range(3)]
    scores = step_progress(torch.tensor([[1.0], [2.0], [1.5]]), steps)
    far, near = np.exp(-2), np.exp(-0.5)  # two deviations, and one
    np.testing.assert_allclose(scores, [(1 + 2 * far) / 3, (far + 2) / 3, near], rtol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("demonstrations")
    for demonstration, shade in (("a", 200), ("b", 230)):
        (place / demonstration).mkdir()
        for number, colour in enumerate([(shade, 20, 20)] * 3 + [(20, 20, shade)] * 3):
            Image.new("RGB", (32, 32), colour).save(place / demonstration / f"{number}.png")
    return place


def test_images_of_the_last_step_score_most(folder):
    reward = load("demonstrated_steps", demonstrations=str(folder), steps=2, features=8, model=str(CLIP), device="cpu")
    items = [RewardInput(str(n), 0, "", image=Image.new("RGB", (32, 32), c)) for n, c in enumerate(("red", "blue"))]
    output = reward.score(items)
    first, last = output.values["demonstrated_steps"].tolist()
    assert output.status["demonstrated_steps"] == [Status.OK] * 2 and 0 <= first < last <= 1
    images = torch.full((1, 3, 32, 32), 0.4).requires_grad_()
    reward.score_tensor(images, items[:1]).sum().backward()
    assert torch.isfinite(images.grad).all()


@pytest.mark.integration
def test_what_was_learnt_is_part_of_the_fingerprint(folder, tmp_path):
    arguments = {"steps": 2, "model": str(CLIP), "device": "cpu"}
    one = load("demonstrated_steps", demonstrations=str(folder), **arguments)
    (tmp_path / "c").mkdir()
    for number, colour in enumerate(("green", "yellow")):
        Image.new("RGB", (32, 32), colour).save(tmp_path / "c" / f"{number}.png")
    before = load("demonstrated_steps", demonstrations=str(tmp_path), **arguments).fingerprint()
    Image.new("RGB", (32, 32), "black").save(tmp_path / "c" / "1.png")
    after = load("demonstrated_steps", demonstrations=str(tmp_path), **arguments).fingerprint()
    assert len({before, after, one.fingerprint()}) == 3


def test_demonstrations_that_cannot_be_learnt_from_are_refused(folder, tmp_path):
    for arguments, message in [
        ({"demonstrations": str(tmp_path / "none")}, "no such folder"),
        ({"demonstrations": str(tmp_path)}, "has no folders"),
        ({"demonstrations": str(folder), "steps": 7}, "has 6 images, and there are 7 steps"),
        ({"demonstrations": str(folder), "steps": 1}, "steps is 1"),
        ({"demonstrations": str(folder), "features": 0}, "features 0"),
        ({"demonstrations": str(folder), "model": str(OPEN_CLIP)}, "does not give its layers"),
    ]:
        with pytest.raises(RewardError, match=message):
            load("demonstrated_steps", device="cpu", **arguments)
