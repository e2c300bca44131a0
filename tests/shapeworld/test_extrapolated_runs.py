"""Answers of a policy whose weights went on from the checkpoints of its training."""

from __future__ import annotations

import pytest
import torch

from mmrl.finetuning.weight_trajectories import adapted_layers, linear_extrapolation
from mmrl_shapeworld.reasoning.extrapolated_runs import extrapolated_answers, trajectory
from mmrl_shapeworld.reasoning.trained_sums import untrained_policy

SETTINGS = {"iterations": 5, "every": 1, "lr": 3e-3}


@pytest.mark.slow
def test_a_trajectory_has_the_change_of_every_adapted_layer_at_each_checkpoint():
    path = trajectory(0, **SETTINGS)
    policy = untrained_policy("policy={kind: vlm, model: 'shapeworld:sums', train: lora, lora: {rank: 8, alpha: 16}}")
    layers = adapted_layers(policy.vlm.model)
    assert len(path) == 5 and path[0].keys() == layers.keys() and len(layers) > 4
    for name, layer in layers.items():
        assert path[0][name].shape == layer.get_base_layer().weight.shape
        assert torch.linalg.matrix_rank(path[-1][name]) <= 8
    norms = [sum(float(each.square().sum()) for each in changes.values()) for changes in path]
    assert 0 < norms[0] < norms[-1]


@pytest.mark.slow
def test_forms_differ_in_where_the_weights_go_and_not_in_the_training():
    found = {
        form: extrapolated_answers(0, "development", form, ahead=3, window=2, prompts=24, **SETTINGS)
        for form in ("none", "linear", "rank_one", "predicted")
    }
    assert {len(each["right"]) for each in found.values()} == {24}
    assert len({tuple(each["tokens"]) for each in found.values()}) > 2
    still = linear_extrapolation(trajectory(0, **SETTINGS), 0)
    assert all(torch.equal(still[name], change) for name, change in trajectory(0, **SETTINGS)[-1].items())
