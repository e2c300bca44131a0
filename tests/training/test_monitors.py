"""A run ends, as finished, where it has gone too far from its reference or has spent its tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.rollout_request import RolloutRequest
from mmrl.training.monitors import PLACES, KLEarlyStopping, distance_from_reference
from tests.training.conftest import samples
from tests.training.gaussian_flow import SPREAD, GaussianFlow
from tests.training.gaussian_policy import GaussianPolicy
from tests.training.test_trainer import lines
from tests.training.token_policy import TokenPolicy, questions


class RecordingDisplay:
    """A display that records its messages."""

    def __init__(self):
        self.texts = []

    def start(self, name, total): ...
    def step(self, report): ...
    def message(self, text):
        self.texts.append(text)

    def close(self): ...


def test_kl_budget_stops_and_saves_the_run_and_can_be_raised(make_trainer, tmp_path):
    display = RecordingDisplay()
    changes = {"evaluate": lambda step: {"evaluation/total": float(step)}, "evaluate_every": 100}
    trainer = make_trainer(tmp_path, training={"iterations": 30, "max_kl": 0.02}, display=display, **changes)
    trainer.train()
    distances = [row["kl"] for row in lines(tmp_path) if row["kind"] == "train"]
    assert 1 < trainer.step < 30 and len(distances) == trainer.step
    assert distances[-1] > 0.02 >= max(distances[:-1])
    evaluated = [row["step"] for row in lines(tmp_path) if row["kind"] == "evaluation"]
    assert evaluated == [0, trainer.step]
    assert trainer.checkpoints.index()["last"] == f"step-{trainer.step}"
    assert f"ended after iteration {trainer.step} of 30" in display.texts[-1]
    assert "is above training.max_kl, 0.02" in display.texts[-1] and "--resume" in display.texts[-1]

    again = make_trainer(tmp_path, training={"iterations": 30, "max_kl": 0.02}, display=display, **changes)
    again.resume()
    again.train()
    assert again.step == trainer.step, "the same budget is spent still"

    straight = make_trainer(tmp_path / "s", training={"iterations": 30, "max_kl": 0.08})
    straight.train()
    larger = make_trainer(tmp_path, training={"iterations": 30, "max_kl": 0.08}, display=display, **changes)
    larger.resume()
    larger.train()
    assert larger.step == straight.step > trainer.step
    assert torch.equal(larger.policy.theta, straight.policy.theta), "a measure changes nothing"


class CountedSource:
    """A source of experience that states how many tokens its answers have."""

    def __init__(self, source, tokens):
        self.source, self.tokens = source, tokens

    def __getattr__(self, name):
        return getattr(self.source, name)

    def collect(self, *args):
        experience = self.source.collect(*args)
        return replace(experience, metrics=experience.metrics | {"tokens": float(self.tokens)})


def test_token_budget_ends_the_run_and_is_counted_over_a_resume(make_trainer, tmp_path):
    def trainer(run, iterations=30, max_tokens=100):
        built = make_trainer(run, training={"iterations": iterations, "max_tokens": max_tokens}, display=display)
        built.source = CountedSource(built.source, 30)
        return built

    display = RecordingDisplay()
    straight = trainer(tmp_path / "straight")
    straight.train()
    assert (straight.step, straight.tokens) == (4, 120), "the iteration that reaches 100 is the last"
    assert "ended after iteration 4 of 30: 120 tokens, training.max_tokens is 100" in display.texts[-1]

    first = trainer(tmp_path / "twice", iterations=2)
    first.train()
    second = trainer(tmp_path / "twice")
    second.resume()
    assert second.tokens == 60
    second.train()
    assert second.step == 4
    assert torch.equal(second.policy.theta, straight.policy.theta)


def test_kl_is_not_measured_without_a_budget(make_trainer, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    assert all("kl" not in row for row in lines(tmp_path))


def test_kl_of_the_algorithm_is_reused():
    budget, metrics = KLEarlyStopping(0.5), {"kl": 0.6}
    budget.update(metrics, GaussianPolicy(), [], seed=0)
    assert budget.exceeded and metrics == {"kl": 0.6}
    budget.update({"kl": float("nan")}, GaussianPolicy(), [], seed=0)
    assert budget.exceeded, "an unknown distance is none that is small"


def test_kl_of_denoising_steps_is_gaussian():
    """KL of N(m, s²) from N(0, s²) is m² / 2s²; the mean over two decisions."""
    policy = GaussianPolicy()
    rollout = policy.rollout([RolloutRequest(samples()[0], 4, 0)], seed=0)
    policy.theta.data = torch.tensor([0.3, 0.1])
    assert distance_from_reference(policy, rollout, 0) == pytest.approx((0.09 + 0.01) / 2 / (2 * 0.25))


def test_kl_of_tokens_is_k3():
    policy = TokenPolicy()
    rollout = policy.rollout([RolloutRequest(questions()[0], 64, 0)], seed=0)
    assert distance_from_reference(policy, rollout, 0) == 0
    with torch.no_grad():
        policy.logits += torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(1))
    assert distance_from_reference(policy, rollout, 0) > 0.01


def test_kl_without_decisions_is_the_velocity_distance():
    """The flow's velocity is linear in its mean: d v / d mean = -(1 - s)(s - (1 - s) SPREAD²) / V - 1 + ..., taken here
    at unit distance from the flow's own formula at x = 0."""
    flow = GaussianFlow()
    rollout = flow.rollout([RolloutRequest(samples()[0], 8, 0)], seed=0)
    flow.mean.data = torch.tensor([0.5])
    expected = []
    for s in PLACES:
        variance = (1 - s) ** 2 * SPREAD**2 + s**2
        slope = -(1 - s) * s / variance - 1 + (1 - s) ** 2 * SPREAD**2 / variance
        expected.append((0.5 * slope) ** 2)
    assert distance_from_reference(flow, rollout, 0) == pytest.approx(sum(expected) / len(expected), rel=1e-5)
