"""Pictures in the data as answers, which rewards score and objectives learn from."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.build.policies import build_policy
from mmrl.build.reward_suites import build_rewards
from mmrl.build.training_setup import build_training_setup
from mmrl.config import load_config
from mmrl.data.sample import Sample
from mmrl.errors import DataError, UnsupportedError
from mmrl.rewards.core.routing import SharedLoader
from mmrl.rollout_request import RolloutRequest
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.rollouts.recorded_pictures import recorded_pictures
from mmrl.training.run.timers import Phases
from mmrl_shapeworld.captions import Caption, sample_scene
from mmrl_shapeworld.scenes import Scene, draw, picture_uri
from mmrl_shapeworld.splits import samples
from tests.training.gaussian_flow import GaussianFlow


def grey_samples(folder, values):
    """Samples with a picture of each grey value, each a file."""
    found = []
    for name, own in values.items():
        pictures = []
        for value in own:
            path = folder / f"{value}.png"
            Image.new("RGB", (4, 4), (value,) * 3).save(path)
            pictures.append({"image": str(path)})
        found.append(Sample(name, prompt="p", demonstration=pictures))
    return found


def test_answers_are_different_pictures_of_their_own_samples(tmp_path):
    values = {"low": (0, 32, 64), "high": (192, 224)}
    recorded = recorded_pictures(GaussianFlow(), grey_samples(tmp_path, values), 2)
    assert recorded.capabilities == GaussianFlow.capabilities
    low, high = grey_samples(tmp_path, values)
    seen = Counter()
    for seed in range(20):
        rollout = recorded.rollout([RolloutRequest(low, 2, 5), RolloutRequest(high, 2, 3)], seed)
        assert rollout.group_index.tolist() == [5, 5, 3, 3] and rollout.samples == [low, low, high, high]
        drawn = [picture.getpixel((0, 0))[0] for picture in rollout.media]
        assert rollout.clean[:, 0].tolist() == [(value - 128) / 64 for value in drawn]
        assert len({*drawn[:2]}) == 2 and {*drawn[:2]} < {0, 32, 64} and {*drawn[2:]} == {192, 224}
        seen.update(drawn[:2])
        again = recorded.rollout([RolloutRequest(low, 2, 5), RolloutRequest(high, 2, 3)], seed)
        assert torch.equal(again.clean, rollout.clean)
    assert len(seen) == 3


def test_data_with_too_few_pictures_is_named(tmp_path):
    found = grey_samples(tmp_path, {"one": (0, 32), "two": (64,), "three": (96,)})
    with pytest.raises(DataError, match=r"2 of 3 samples have fewer than 2 pictures \(data\.group_size\).*'two'"):
        recorded_pictures(GaussianFlow(), found, 2)
    assert recorded_pictures(GaussianFlow(), found, 1)
    with pytest.raises(DataError, match="expected its demonstration to be"):
        recorded_pictures(GaussianFlow(), [Sample("s", prompt="p", demonstration="a text")], 1)

    class Blind(GaussianFlow):
        def encode(self, pictures):
            raise UnsupportedError("no image encoder")

    with pytest.raises(UnsupportedError, match="no image encoder"):
        recorded_pictures(Blind(), found, 1)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        ("{name: flow_rwr, samples_from: data, num_noise_levels: 1}", {math.e, 1.0}),
        ("{name: rejection_sft, samples_from: data, num_noise_levels: 1}", {1.0}),
        ("{name: online_dpo, samples_from: data, num_noise_levels: 1}", {0.5, -0.5}),
    ],
)
def test_recorded_pictures_are_scored_and_learnt_from(algorithm, weights):
    """A right and an empty picture of each caption, whose scores are 1 and 0."""
    rng, found = np.random.default_rng(0), []
    for sample in samples("train")[:2]:
        right = draw(sample_scene(Caption.from_dict(sample.answer), rng))
        pictures = [{"image": picture_uri(each)} for each in (draw(Scene(())), right)]
        found.append(replace(sample, demonstration=pictures))
    config = load_config("quickstart", [f"algorithm={algorithm}", "data.groups=2", "data.group_size=2"])
    policy = build_policy(config.policy, config.sampling, config.media)
    policy.rollout = None  # nothing is sampled
    with closing(build_rewards(config, found, SharedLoader())) as rewards:
        setup = build_training_setup(config, policy, found, [], rewards)
        experience = setup.source.collect(0, 0.0, Phases())
    batches = experience.micro_batches
    assert sum(batch.rollout.rows for batch in batches) == (2 if "rejection" in algorithm else 4)
    values = torch.cat([batch.advantages for batch in batches]).tolist()
    assert {round(value, 4) for value in values} == {round(value, 4) for value in weights}
    assert experience.metrics["reward/total"] == 0.5
    setup.objective.accumulate(batches, 1.0, list(range(len(batches))), MetricAccumulator())
    assert any(each.grad is not None and each.grad.norm() > 0 for each in policy.parameters_to_train().values())
