"""Styles under rewards: models that are pre-trained on two styles, and what GRPO makes of their shares."""

from __future__ import annotations

import pytest
import torch

from mmrl_shapeworld.reasoning import amplified_styles as experiment
from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.reasoning.amplified_styles import amplified_styles, measured, pretrained
from mmrl_shapeworld.reasoning.calculations import Calculation
from mmrl_shapeworld.reasoning.pretraining import batches, loss_of
from mmrl_shapeworld.reasoning.trained_sums import untrained_policy

CALCULATION = Calculation(10, 3, "+*", (5, 7))
CONCISE, VERBOSE = "<think>8 6</think>6", "<think>3+5=8;8*7=6;</think>6"
STEPS, PROMPTS = 100, 24


@pytest.fixture(scope="module", autouse=True)
def small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "BATCH", 24)
        yield
    pretrained.cache_clear()


@pytest.fixture(scope="module")
def base():
    return amplified_styles(0, 32, iterations=0, steps=STEPS, prompts=PROMPTS)


@pytest.mark.integration
def test_the_styles_of_the_shipped_model_are_those_it_was_taught():
    found = measured(untrained_policy(), "development", 192)
    shares = {style: sum(found[style]) / 192 for style in ("concise", "verbose")}
    assert 0.2 < shares["concise"] < 0.45 and 0.15 < shares["verbose"] < 0.4
    assert found["dominant"] == [max(shares.values())]
    assert all(concise + verbose <= 1 for concise, verbose in zip(found["concise"], found["verbose"], strict=True))


@pytest.mark.slow
def test_pre_training_learns_the_style_of_its_traces():
    words = reasoner_model.tokenizer()

    def loss(trace: str, concise: float) -> float:
        model = pretrained(0, 32, concise, 60)
        (part,) = batches(words, [CALCULATION], [trace], count=1)
        with torch.no_grad():
            return float(loss_of(model, *part)[0])

    assert loss(CONCISE, 1.0) < loss(CONCISE, 0.0) - 2
    assert loss(VERBOSE, 0.0) < loss(VERBOSE, 1.0) - 2


@pytest.mark.slow
def test_the_model_as_pre_trained_is_always_the_same_and_rewards_change_its_answers(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert amplified_styles(0, 32, iterations=0, steps=STEPS, prompts=PROMPTS) == base
    assert set(base) == {"concise", "verbose", "right", "dominant"} and len(base["right"]) == PROMPTS
    weights = {name: value.clone() for name, value in pretrained(0, 32, 0.7, STEPS).state_dict().items()}
    found = amplified_styles(0, 32, iterations=2, steps=STEPS, lr=1e-2, prompts=PROMPTS)
    assert found != base and list(tmp_path.iterdir()) == []
    kept = pretrained(0, 32, 0.7, STEPS).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in kept.items())
