"""The experiment of VideoReward: training from ordered pairs of pictures, and guidance by a reward model's gradient."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image

from mmrl_shapeworld import aligned_pictures, generated_pictures, preferences
from mmrl_shapeworld.aligned_pictures import OrderedPairs, advantages_of
from mmrl_shapeworld.preferences import filled_share, mean_height
from mmrl_shapeworld.scenes import BACKGROUND, Scene, Thing, draw


def test_weights_of_pictures_by_hand():
    scores = torch.tensor([[0.5, 0.25], [0.75, 0.5]])
    assert advantages_of(scores, "sft", 1.0).tolist() == [[1, 0], [1, 0]]
    assert torch.equal(advantages_of(scores, "dpo", 1.0), scores)
    odds = torch.tensor([[1.0, 0.5], [2.0, 1.0]])  # at a temperature at which a quarter is worth a factor of 2
    assert torch.allclose(advantages_of(scores, "rwr", 0.25 / math.log(2)), odds / odds.mean())


def test_the_share_of_a_picture_that_is_filled_and_where_that_is():
    empty = Image.new("RGB", (32, 32), BACKGROUND)
    assert filled_share(empty) == 0.0 and mean_height(empty) == 0.5
    high, low = (draw(Scene((Thing("red", "square", 0.5, y, 0.3),))) for y in (0.25, 0.7))
    assert mean_height(high) == pytest.approx(0.75, abs=0.02) and mean_height(low) == pytest.approx(0.3, abs=0.02)
    half = draw(Scene((Thing("red", "square", 0.5, 0.5, 0.5),)))
    assert filled_share(half) == pytest.approx(0.25, abs=0.03)


@pytest.fixture
def small(monkeypatch):
    """Few pairs and a reward model of few, in a process whose caches are empty before and after."""
    caches = (
        *(aligned_pictures.ordered_pairs, aligned_pictures.reward_model, aligned_pictures._guide),
        *(preferences._samples, generated_pictures._drawn),
    )
    for each in caches:
        each.cache_clear()
    monkeypatch.setattr(preferences, "FACTORS", {"train": 32, "development": 16, "validation": 16})
    monkeypatch.setattr(generated_pictures, "CAPTIONS", 16)
    yield
    for each in caches:
        each.cache_clear()


@pytest.mark.slow
def test_training_and_guidance_change_pictures(small):
    pairs = aligned_pictures.ordered_pairs()
    assert len(pairs.samples) == len(pairs.clean) == len(pairs.scores) > 2
    drawn = aligned_pictures.samples("generated-train")
    assert len(drawn) == 16 and drawn == aligned_pictures.samples("generated-train")
    for sample in drawn:
        one, other = sample.metadata["generators"]
        assert one != other and {one, other} <= set(generated_pictures.GENERATORS)
        assert len(sample.demonstration) == 2 and sample.demonstration[0] != sample.demonstration[1]
    assert (pairs.scores[:, 0] - pairs.scores[:, 1] >= aligned_pictures.LEAST).all()
    run = {"seed": 3, "on": "development", "prompts": 2}
    plain = aligned_pictures.aligned_pictures(**run)
    assert list(plain) == ["match", "strict", "size", "height"] and len(plain["size"]) == 2
    assert aligned_pictures.aligned_pictures(**run) == plain
    assert aligned_pictures.aligned_pictures(**run, weights={"size": 5.0})["size"] != plain["size"]
    for method in ("sft", "rwr", "dpo"):
        trained = aligned_pictures.aligned_pictures(**run, method=method, steps=1, pairs=4, lr=1e-2)
        assert trained["size"] != plain["size"], method


@pytest.mark.slow
def test_dpo_brings_the_better_picture_nearer_than_the_worse_one(small):
    """Errors of velocities on the pairs themselves, before and after a few steps on them."""
    policy = aligned_pictures.loaded("none")
    pairs = aligned_pictures.subset(aligned_pictures.ordered_pairs(), 4, seed=0)
    assert isinstance(pairs, OrderedPairs) and len(pairs.samples) == 4
    rollout = aligned_pictures._rollout(policy, pairs, torch.arange(4))
    noise = torch.randn(rollout.clean.shape, generator=torch.Generator().manual_seed(1))

    def gap():
        with torch.no_grad():
            velocity = policy.predict_velocity(rollout, 0.5 * rollout.clean + 0.5 * noise, 0.5)
        error = (velocity - (noise - rollout.clean)).square().flatten(1).mean(1).view(4, 2)
        return (error[:, 1] - error[:, 0]).mean().item()

    before = gap()
    aligned_pictures.train(policy, "dpo", pairs, 0, 20, 1e-4, 100.0, 0.2)
    assert gap() > before + 0.01
