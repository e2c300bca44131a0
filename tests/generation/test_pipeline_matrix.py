"""Every tiny pipeline is in the breadth tests, and its gradient equals the finite difference."""

from __future__ import annotations

import pytest
import torch

from tests.generation import tiny_pipelines as tiny
from tests.generation.pipeline_matrix import FLOW_IMAGES, NOISE_IMAGES, STEPS, VIDEOS, build, calls, names, roll
from tests.generation.representatives import features, representatives
from tests.pair_cover import pairs_of


def test_every_tiny_pipeline_is_in_one_test_file():
    found = [name for table in (*FLOW_IMAGES, *NOISE_IMAGES, *VIDEOS) for name in table.PIPELINES]
    assert sorted(found) == sorted(tiny.PIPELINES)


def test_representatives_have_every_pair_of_feature_values():
    def pairs(names):
        return frozenset().union(*(pairs_of(features(name)) for name in names))

    quick = [name for name, each in tiny.PIPELINES.items() if not (each.slow or each.heavy)]
    assert pairs(representatives()) == pairs(quick)
    assert 20 <= len(representatives()) <= 32 < len(quick)
    assert {features(name).family for name in representatives()} == {features(name).family for name in quick}


@pytest.mark.slow
@pytest.mark.parametrize("name", names(*FLOW_IMAGES, *NOISE_IMAGES, *VIDEOS))
def test_matrix_gradients_are_those_of_the_decisions(name, tmp_path):
    """Against a finite difference along it: a part of the model that learns unseen would show.

    It is taken of the means, from which log-probabilities follow: float32 rounds them less than their average.
    """
    built = build(name, tmp_path)
    policy = built.policy
    parameters = policy.parameters_to_train().values()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:  # adapters begin with zeros, where half of their gradient is zero too
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    rollout = roll(policy, calls(name, built.samples)[0], tiny.sampling(name, steps=STEPS))
    step_indices = range(rollout.log_probs.shape[1])
    weights: dict[int, torch.Tensor] = {}

    def score() -> float:
        scores = []

        def visit(now):
            weight = weights.setdefault(now.step_indices[0], torch.randn(now.mean.shape, generator=generator))
            scores.append((weight * now.mean).double().sum())
            if scores[-1].requires_grad:
                scores[-1].backward()

        policy.replay(rollout, step_indices, visit)
        return sum(scores).item()

    def along(step: float) -> float:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter += step / norm * gradient
            found = score()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= step / norm * gradient
        return found

    score()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    norm = sum(gradient.square().sum() for gradient in gradients).sqrt().item()
    steps = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
    ratios = [(along(step) - along(-step)) / (2 * step * norm) for step in steps]
    assert min(abs(ratio - 1) for ratio in ratios) < 0.005, ratios
