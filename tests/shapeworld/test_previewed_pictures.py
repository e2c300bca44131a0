"""Pictures with previews of them while they are denoised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmrl_shapeworld import previewed_pictures
from mmrl_shapeworld.previewed_pictures import PREVIEWS, STEPS, PreviewScheduler, pictures_with_previews

PROMPTS = ("a red circle", "a blue square")


def test_the_last_preview_is_the_finished_sample_and_a_constant_velocity_ends_where_every_preview_says():
    scheduler = PreviewScheduler(num_train_timesteps=1000, shift=1.0)
    scheduler.set_timesteps(STEPS)
    noise, picture = torch.ones(1, 4, 2, 2), torch.full((1, 4, 2, 2), 3.0)
    sample = noise
    for timestep in scheduler.timesteps:
        sample = scheduler.step(noise - picture, timestep, sample, return_dict=False)[0]
    assert len(scheduler.previews) == STEPS
    for preview in scheduler.previews:  # on a straight way from noise to picture, all of them are the picture
        torch.testing.assert_close(preview, picture)
    torch.testing.assert_close(scheduler.previews[-1], sample)


@pytest.mark.integration
def test_previews_come_nearer_to_the_finished_picture():
    states = pictures_with_previews(PROMPTS, seed=0)
    assert [len(each) for each in states] == [len(PROMPTS)] * (len(PREVIEWS) + 1)
    finished = np.stack([np.asarray(each, dtype=float) for each in states[-1]])
    gaps = [
        float(np.abs(np.stack([np.asarray(one, dtype=float) for one in each]) - finished).mean()) for each in states
    ]
    assert gaps == sorted(gaps, reverse=True) and gaps[-2] > 0


@pytest.mark.integration
def test_pictures_are_always_the_same_and_have_a_state_for_each_preview():
    one, other = (previewed_pictures.previewed_pictures.__wrapped__("development", 3, 2, 2, 5) for _ in range(2))
    assert one.features.shape[:3] == (2, 2, len(PREVIEWS) + 1) and one.score.shape == one.right.shape == (2, 2)
    torch.testing.assert_close(one.features, other.features)


@pytest.mark.slow
def test_the_contrast_changes_the_scores_of_previews_and_pruning_does_not(monkeypatch):
    monkeypatch.setattr(previewed_pictures, "TRAINING", ("train", 0, 48, 2))
    monkeypatch.setattr(previewed_pictures, "JUDGED", {"development": ("development", 0, 24, 4)})
    plain, goal, unpruned = (
        previewed_pictures.preview_scores(0, "development", weight, prune, pairs=16)
        for weight, prune in ((0.0, True), (2.0, True), (2.0, False))
    )
    assert plain["auc"] != goal["auc"] and goal["auc"] == unpruned["auc"]
    assert all(0 <= value <= 1 for each in (plain, goal, unpruned) for found in each.values() for value in found)
