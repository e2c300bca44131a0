"""A loss without a graph is an error, unless the step is one of a denoiser that is frozen on purpose."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmrl.training.objectives.replay_passes import backpropagate


def test_a_loss_without_a_graph_is_an_error_unless_a_denoiser_is_frozen():
    constant = torch.ones((), requires_grad=False)
    with pytest.raises(RuntimeError, match="does not require grad"):
        backpropagate(constant, SimpleNamespace())
    backpropagate(constant, SimpleNamespace(has_frozen_denoisers=True))


def test_a_loss_with_a_graph_reaches_its_parameter():
    parameter = torch.tensor(3.0, requires_grad=True)
    backpropagate(parameter**2, SimpleNamespace(has_frozen_denoisers=True))
    assert parameter.grad == 6
