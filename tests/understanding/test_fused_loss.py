"""An update whose loss is fused into the policy: equal gradients, and the output layer's logits only once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.base import KLConfig
from mmrl.config.algorithms.policy_gradient import CISPOConfig, DAPOConfig, GRPOConfig, GSPOConfig, PolicyGradientConfig
from mmrl.config.policy import LoraConfig, ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.policy import Capability
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_kernels.ops.linear_logprob import autograd
from tests.understanding.media import as_png, picture

REQUESTS = [
    RolloutRequest(Sample("a", prompt="What?", images=(as_png(picture(1)),)), 3, 0),
    RolloutRequest(Sample("b", prompt="Two and two?"), 2, 1),
]
CONFIGS: dict[str, PolicyGradientConfig] = {
    "grpo": GRPOConfig(),
    "past the clip": GRPOConfig(clip={"low": 0.05}),
    "k3": GRPOConfig(kl=KLConfig(coef=0.3)),
    "k2": GRPOConfig(kl=KLConfig(kind="k2", coef=0.3)),
    "dapo": DAPOConfig(),
    "cispo": CISPOConfig(),
}


@pytest.fixture(scope="module")
def policy(folder_of):
    part = ModelPartConfig(train=True)
    settings = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", train="full", vision=part, connector=part)
    return VLMPolicy.from_config(settings, TokenSamplingConfig(max_new_tokens=6))


@pytest.fixture(scope="module")
def batch(policy):
    rollout = policy.rollout(REQUESTS, seed=0)
    rollout = replace(rollout, log_probs=rollout.log_probs + 0.2 * torch.randn(rollout.log_probs.shape) * rollout.mask)
    worth = torch.tensor([1.0, -0.7, 0.4, 0.0, -1.2])
    credit = worth[:, None] * rollout.mask
    return MicroBatch(rollout, worth, torch.ones(5, dtype=torch.bool), credit)


def gradients(policy, batch, config, fused, fused_loss=True):
    policy.config = policy.config.model_copy(update={"fused_log_probs": fused})
    capabilities = policy.capabilities if fused_loss else policy.capabilities - {Capability.FUSED_LOSS}
    policy.vlm.model.zero_grad()
    objective = PolicyGradient(policy, config)
    policy.capabilities = capabilities
    try:
        objective.backward(batch, 1.0, 0, MetricAccumulator())
    finally:
        del policy.capabilities  # the class has them all
    return torch.cat([p.grad.flatten() for p in policy.vlm.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", CONFIGS)
def test_fused_gradients_equal_whole_logits_computed_once(name, policy, batch, monkeypatch):
    config = CONFIGS[name]
    expected = gradients(policy, batch, config, fused=False)
    again = gradients(policy, batch, config, fused=True, fused_loss=False)
    monkeypatch.setattr(autograd, "_backward", None)
    found = gradients(policy, batch, config, fused=True)
    assert expected.norm() > 1e-3
    for each in (again, found):
        assert (each - expected).norm() < 2e-5 * expected.norm()
    with pytest.raises(TypeError, match="NoneType"):  # without the derivative the gradients are computed again
        gradients(policy, batch, config, fused=True, fused_loss=False)


def test_sequence_level_losses_are_not_fused(policy, batch):
    config = GSPOConfig()
    expected, found = (gradients(policy, batch, config, fused) for fused in (False, True))
    assert (found - expected).norm() < 2e-5 * expected.norm() != 0


def test_fused_loss_with_adapters_has_a_frozen_output_layer(folder_of, batch, monkeypatch):
    settings = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", lora=LoraConfig(rank=2), fused_log_probs=True)
    adapted = VLMPolicy.from_config(settings, TokenSamplingConfig(max_new_tokens=6))
    objective = PolicyGradient(adapted, GRPOConfig())
    monkeypatch.setattr(autograd, "_backward", None)
    objective.backward(batch, 1.0, 0, MetricAccumulator())
    assert sum(p.grad.abs().sum() for p in adapted.parameters_to_train().values() if p.grad is not None) > 0
