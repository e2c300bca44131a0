"""Predictions of a generator of the run from noised pictures, against a flow whose every number is known."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmrl.config.named_models import NamedModelConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample
from mmrl.training.run_models import NamedModels
from tests.training.gaussian_flow import SPREAD, GaussianFlow

GREYS = (32, 128, 200, 255, 90)
PLACES = (0.2, 0.5, 0.9)


def predicted(rows: int = 2, seed: int = 3, mean: float = 0.0):
    flow = GaussianFlow()
    flow.mean.data.fill_(mean)
    models = NamedModels(flow, {"start": NamedModelConfig(of="policy")}, {}, rows, drawing={"policy": SamplingConfig(),
                         "start": SamplingConfig()})  # fmt: skip
    samples = [Sample(id=str(grey), prompt="grey") for grey in GREYS]
    pictures = [Image.new("RGB", (1, 1), (grey,) * 3) for grey in GREYS]
    return {name: models.painters[name].denoise(samples, pictures, PLACES, seed) for name in ("policy", "start")}


def test_the_predicted_latents_are_the_mean_of_the_posterior():
    """x_0 ~ N(m, s²) and x_t = (1 - t) x_0 + t noise: E[x_0 | x_t] = m + (1 - t) s² (x_t - (1 - t) m) / var(x_t)."""
    for grey, levels in zip(GREYS, predicted(mean=0.7)["policy"], strict=True):
        assert [each.sigma for each in levels] == list(PLACES)
        for each in levels:
            clean, noise, t = float(each.clean[0]), float(each.noise[0]), each.sigma
            assert clean == pytest.approx((grey - 128) / 64)
            noisy = (1 - t) * clean + t * noise
            posterior = 0.7 + (1 - t) * SPREAD**2 * (noisy - (1 - t) * 0.7) / ((1 - t) ** 2 * SPREAD**2 + t**2)
            assert each.predicted[0] == pytest.approx(posterior, abs=1e-5)
            assert each.error == pytest.approx(((noisy - posterior) / t - (noise - clean)) ** 2, rel=1e-4)


def test_all_pictures_have_the_same_noise_in_calls_of_any_size():
    two, five = predicted(rows=2)["policy"], predicted(rows=5)["policy"]
    for one, other in zip(two, five, strict=True):
        for here, there, first in zip(one, other, two[0], strict=True):
            assert np.array_equal(here.noise, first.noise) and np.array_equal(here.velocity, there.velocity)
    noises = {float(each.noise[0]) for each in two[0]}
    assert len(noises) == len(PLACES) and noises.isdisjoint(float(e.noise[0]) for e in predicted(seed=4)["policy"][0])


def test_a_snapshot_predicts_as_training_began():
    found = predicted(mean=0.7)
    expected = predicted(mean=0.0)["policy"]
    for one, other, moved in zip(found["start"], expected, found["policy"], strict=True):
        assert all(np.array_equal(a.velocity, b.velocity) for a, b in zip(one, other, strict=True))
        assert not any(np.array_equal(a.velocity, b.velocity) for a, b in zip(one, moved, strict=True))
