"""A learning rate that follows the signal in the gradient."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmrl.config.training import OptimizerConfig
from mmrl.distributed.layout import Replicas
from mmrl.errors import ConfigError
from mmrl.training.learner import Learner, gradient_signal

SIZE = 400


class OneTable:
    """A model of one vector, whose gradients a test writes."""

    version = 0

    def __init__(self) -> None:
        self.table = nn.Parameter(torch.zeros(SIZE))

    def parameters_to_train(self):
        return {"table": self.table}

    def lr_scale(self, name: str) -> float:
        return 1.0


def rates(noise: float, updates: int = 60, **signal: object) -> tuple[Learner, list[float]]:
    """The learning rates of updates whose gradient has a mean of norm 1 and noise of this standard deviation."""
    model, generator = OneTable(), torch.Generator().manual_seed(1)
    settings = OptimizerConfig(lr=0.5, betas=(0.9, 0.95), max_grad_norm=1e9, signal=signal)
    learner, found = Learner(model, settings, "float32"), []
    for _ in range(updates):
        drawn = noise * torch.randn(SIZE, generator=generator) / SIZE**0.5
        model.table.grad = drawn + 1 / SIZE**0.5
        found.append(learner.update(updates, 0).learning_rate)
    return learner, found


@pytest.mark.parametrize(("noise", "share"), [(0.5, 0.8), (1.0, 0.5), (2.0, 0.2)])
def test_the_rate_is_the_share_of_signal(noise, share):
    """|m|^2 / (|m|^2 + v) with |m| = 1 and v the square of the noise."""
    learner, found = rates(noise, least=0.01)
    assert found[:10] == [0.5] * 10
    assert found[-1] / 0.5 == pytest.approx(share, abs=0.12)
    assert gradient_signal(learner.optimizer) == pytest.approx(share, abs=0.12)


def test_it_has_a_floor_and_a_start():
    assert rates(30.0, least=0.3)[1][-1] == pytest.approx(0.15)
    assert rates(30.0, updates=20, least=0.3, after=20)[1] == [0.5] * 20
    assert OptimizerConfig(signal=0.2).signal.least == 0.2


def test_without_noise_the_rate_is_the_plain_one():
    assert rates(0.0)[1] == pytest.approx([0.5] * 60)


def test_no_moments_have_no_signal():
    assert gradient_signal(torch.optim.AdamW([nn.Parameter(torch.zeros(2))])) is None


def test_a_resumed_learner_has_the_same_rate():
    learner, _ = rates(1.0)
    again = Learner(OneTable(), learner.settings, "float32")
    again.load(learner.tensors(), learner.values())
    assert again._signal_factor() == learner._signal_factor() < 1


def test_divided_parameters_are_refused():
    model = OneTable()
    model.layout = SimpleNamespace(place=Replicas().place)
    with pytest.raises(ConfigError, match=r"optimizer\.signal"):
        Learner(model, OptimizerConfig(signal=0.1), "float32")
