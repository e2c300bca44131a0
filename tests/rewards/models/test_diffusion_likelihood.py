"""The reward by a generator's own errors, with the shipped pipeline: which prompt is true of a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.build.load_models import build_models, check_reward_models
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.core.cache import cacheable
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardContext
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.run_models import NamedModels
from mmrl.workflows.train import train
from mmrl_shapeworld.captions import Caption, Clause, sample_scene
from mmrl_shapeworld.scenes import draw
from tests.generation import tiny_pipelines

CAPTIONS = [
    Caption((Clause(count, colour, shape),))
    for count, colour, shape in (
        (1, "red", "circle"),
        (3, "green", "square"),
        (2, "blue", "triangle"),
        (1, "yellow", "square"),
        (3, "red", "triangle"),
        (2, "green", "circle"),
    )
]
PROMPTS = [str(each) for each in CAPTIONS]
PICTURES = [draw(sample_scene(each, np.random.default_rng(seed))) for seed, each in enumerate(CAPTIONS)]
NAME = "diffusion_likelihood"


@pytest.fixture(scope="module")
def models() -> NamedModels:
    config = load_config("quickstart", ["models={start: {of: policy}}", "policy.train=lora"])
    return build_models(config, build_policy(config.policy, config.sampling))


def drawn(row: int, prompt: str, **changes: Any) -> RewardInput:
    sample = Sample(id=str(row), prompt=prompt)
    return replace(RewardInput(str(row), row, prompt, image=PICTURES[row], sample=sample), **changes)


def score(models: Mapping[str, Any], rows: list[RewardInput], seed: int = 3, **args: Any) -> Any:
    return load(NAME, **args).score(rows, RewardContext(models=models, seed=seed))


@pytest.mark.integration
def test_the_true_prompt_makes_a_picture_likelier_than_none_and_a_wrong_one_less_likely(models):
    others = PROMPTS[1:] + PROMPTS[:1]
    own = score(models.handles, [drawn(row, each) for row, each in enumerate(PROMPTS)]).values[NAME]
    wrong = score(models.handles, [drawn(row, each) for row, each in enumerate(others)]).values[NAME]
    assert (own > 0).all() and (wrong < own).all() and wrong.mean() < 0


@pytest.mark.integration
def test_it_is_the_difference_of_two_errors(models):
    rows = [drawn(row, each) for row, each in enumerate(PROMPTS)]
    blank = [drawn(row, "") for row in range(len(PROMPTS))]
    alone, without = (score(models.handles, each, levels=2, relative=False).values[NAME] for each in (rows, blank))
    both = score(models.handles, rows, levels=2).values[NAME]
    np.testing.assert_allclose(both, alone - without, atol=1e-6)
    samples = [Sample(id=each.id, prompt=each.prompt) for each in rows]
    levels = models.painters["policy"].denoise(samples, PICTURES, (0.25, 0.75), 3)
    np.testing.assert_allclose(alone, [-np.mean([at.error for at in each]) for each in levels], rtol=1e-6)


def test_a_text_is_a_prompt_for_the_picture_that_it_describes(models):
    rows = [drawn(0, PROMPTS[0]), drawn(0, "?", image=None, text=f" {PROMPTS[0]}\n", references={"images": PICTURES})]
    rows.append(replace(rows[1], text=PROMPTS[1]))
    first, same, wrong = score(models.handles, rows).values[NAME]
    assert same == first > wrong


@pytest.mark.integration
def test_the_noise_is_that_of_the_iteration_and_the_model_that_of_the_name(models):
    rows = [drawn(0, PROMPTS[0])]
    first, again, other = (score(models.handles, rows, seed=seed).values[NAME][0] for seed in (3, 3, 4))
    assert first == again != other
    policy = models["policy"].policy
    names = list(policy.parameters_to_train())
    with torch.no_grad():
        before = [policy.parameters_to_train()[name].clone() for name in names]
        for name in names:
            policy.parameters_to_train()[name].add_(0.05)
    moved, start = (score(models.handles, rows, model=name).values[NAME][0] for name in ("policy", "start"))
    with torch.no_grad():
        for name, value in zip(names, before, strict=True):
            policy.parameters_to_train()[name].copy_(value)
    assert start == first != moved


def test_what_has_no_picture_is_no_number(models):
    rows = [
        drawn(0, PROMPTS[0], image=None, text="  ", references={"images": PICTURES}),
        drawn(0, PROMPTS[0], image=None, text="a red circle"),
        drawn(0, PROMPTS[0], image=None),
        drawn(0, PROMPTS[0]),
    ]
    found = score(models.handles, rows)
    assert [math.isnan(each) for each in found.values[NAME]] == [True, True, True, False]
    assert found.status[NAME] == [Status.ERROR, Status.ERROR, Status.ERROR, Status.OK]
    outside = load(NAME).score(rows[3:])
    assert "there is no generator policy" in outside.detail[0][NAME]
    assert not cacheable(load(NAME))
    with pytest.raises(RewardError, match="levels is 0"):
        load(NAME, levels=0)


def test_a_generator_that_cannot_read_pictures_is_refused_before_training(tmp_path):
    tiny_pipelines.build("sana").save_pretrained(tmp_path / "model")
    words = [f"policy={{model: '{tmp_path / 'model'}', train: lora, lora: {{rank: 2}}}}"]
    config = load_config("quickstart", words).model_copy(update={"sampling": tiny_pipelines.sampling("sana", steps=2)})
    policy = build_policy(config.policy, config.sampling)
    suite = RewardSuite([(load(NAME), 1.0)])
    with pytest.raises(ConfigError, match="the velocities of a picture: SanaPipeline"):
        check_reward_models(suite, build_models(config, policy))


@pytest.mark.integration
def test_a_run_learns_from_it(tmp_path):
    words = [
        "models={start: {of: policy}}",
        f"rewards=[{{name: {NAME}, args: {{model: start, levels: 2}}}}]",
        "data={path: 'shapeworld:train', groups: 2, group_size: 3}",
        "evaluation={}",
        "sampling.steps=3",
        "training={iterations: 1}",
        f"run={{dir: '{tmp_path / 'run'}', display: quiet}}",
    ]
    run = train(load_config("quickstart", words))
    line = (run / "metrics.jsonl").read_text()
    assert f'"reward/{NAME}"' in line and "NaN" not in line
