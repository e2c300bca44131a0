"""FP8 numbers in linear layers: rounding by hand, and what rollouts and updates compute with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from mmrl.checks import ShapeError
from mmrl.config.loading.load import load_config
from mmrl.config.policy import FP8Config, LoraConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.validation import validation_errors
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.sampling_copy import sampling_copy
from mmrl.understanding.fp8_linear import FP8Linear, round_to_fp8, use_fp8
from mmrl.understanding.vlm import layers_for_fp8
from mmrl.understanding.vlm_policy import VLMPolicy

REQUESTS = [RolloutRequest(Sample(f"p{n}", prompt=f"{n} and {n}?"), 4, n) for n in range(2)]


def matrix(seed: int, rows: int = 5, columns: int = 7) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("fp8_format", "expected"),
    [
        # 448 needs no scale. 17 lies between 16 and 18, 19 between 18 and 20, and a tie goes to the even mantissa; a
        # sixteenth below 0.5 the spacing is 1/32; 2^-10 is half of the smallest number, 2^-9
        ("e4m3", [448.0, 16.0, 20.0, -0.3125, 0.0]),
        # the scale is 2^-7, which changes no mantissa; numbers from 16 on are 4 apart, those from 1/4 on 1/16
        ("e5m2", [448.0, 16.0, 20.0, -0.3125, 2.0**-10]),
    ],
)
def test_rounding_by_hand(fp8_format, expected):
    values = torch.tensor([[448.0, 17.0, 19.0, -0.3, 2.0**-10]])
    assert round_to_fp8(values, fp8_format, None, None).tolist() == [expected]


def test_a_scale_lets_the_largest_number_fit():
    values = torch.tensor([[449.0, 3.0]])  # twice too large for e4m3: a scale of 2
    assert round_to_fp8(values, "e4m3", None, None).tolist() == [[448.0, 3.0]]
    assert round_to_fp8(1000 * values, "e4m3", None, None)[0, 0] == pytest.approx(449e3, rel=1 / 16)
    assert round_to_fp8(torch.zeros(2, 3), "e5m2", 2, 2).tolist() == torch.zeros(2, 3).tolist()


def test_a_block_has_its_own_scale():
    """A small number beside 1e6 is lost in one block, and kept in two."""
    values = torch.tensor([[1e6, 0.3, 0.3]])
    assert round_to_fp8(values, "e4m3", 1, 3)[0, 1:].tolist() == [0.0, 0.0]
    found = round_to_fp8(values, "e4m3", 1, 2)[0]
    assert found[1] == 0 and found[2] == pytest.approx(0.3, rel=1 / 16)


@given(st.integers(0, 10_000), st.sampled_from(["e4m3", "e5m2"]), st.sampled_from([None, 1, 2, 3]), st.integers(-9, 9))
def test_properties_of_rounding(seed, fp8_format, block, power):
    values = matrix(seed)
    found = round_to_fp8(values, fp8_format, block, block)
    step = {"e4m3": 2.0**-4, "e5m2": 2.0**-3}[fp8_format]  # half of the spacing, over the number
    torch.testing.assert_close(found, values, rtol=step, atol=1e-3)
    assert torch.equal(round_to_fp8(found, fp8_format, block, block), found)
    assert torch.equal(round_to_fp8(2.0**power * values, fp8_format, block, block), 2.0**power * found)
    assert torch.equal(round_to_fp8(-values, fp8_format, block, block), -found)


@given(st.integers(0, 10_000))
def test_a_token_alone_is_rounded_as_in_any_batch(seed):
    values = 10 ** matrix(seed, 6, 1) * matrix(seed + 1, 6, 9)
    found = round_to_fp8(values, "e4m3", 1, 4)
    for row in range(6):
        assert torch.equal(round_to_fp8(values[row : row + 1], "e4m3", 1, 4)[0], found[row])


def test_one_scale_for_several_tokens_would_make_them_depend_on_each_other():
    values = torch.tensor([[0.01, 0.3], [5e5, 1.0]])
    assert not torch.equal(round_to_fp8(values, "e4m3", None, None)[:1], round_to_fp8(values[:1], "e4m3", None, None))


def test_rounding_passes_gradients_unchanged_and_refuses_a_vector():
    values = matrix(0).requires_grad_()
    weights = matrix(1)
    (round_to_fp8(values, "e4m3", 2, 2) * weights).sum().backward()
    assert torch.equal(values.grad, weights)
    with pytest.raises(ShapeError, match=r"expected \[\.\.\., N, M\]"):
        round_to_fp8(torch.ones(3), "e4m3", None, None)


def test_a_layer_multiplies_rounded_numbers_and_its_gradients_are_those_of_them():
    layer = nn.Linear(7, 5)
    before = layer.weight.detach().clone()
    use_fp8([layer], FP8Config(block=4))
    inputs, out = matrix(3, 2, 7).requires_grad_(), matrix(4, 2, 5)
    (layer(inputs) * out).sum().backward()
    weight = round_to_fp8(before, "e4m3", 4, 4)
    rounded = round_to_fp8(inputs.detach(), "e4m3", 1, 4)
    torch.testing.assert_close(layer(inputs), F.linear(rounded, weight, layer.bias))
    torch.testing.assert_close(inputs.grad, out @ weight)
    torch.testing.assert_close(layer.weight.grad, out.T @ rounded)
    torch.testing.assert_close(layer.bias.grad, out.sum(0))
    assert torch.equal(layer.weight.detach(), before)


def test_a_rollout_rounds_each_weight_once_and_sees_a_weight_put_in_its_place():
    layer = nn.Linear(4, 4, bias=False)
    numbers = use_fp8([layer], FP8Config(flow="rollout"))
    inputs = torch.eye(4)
    assert torch.equal(layer(inputs), layer.weight.T)
    with numbers.of_rollout():
        first = numbers.weight(layer.weight)
        assert numbers.weight(layer.weight) is first
        layer.weight = nn.Parameter(2 * layer.weight.detach())
        assert torch.equal(numbers.weight(layer.weight), 2 * first)
    assert torch.equal(layer(inputs), layer.weight.T)


@pytest.fixture
def policy_of(folder_of):
    def build(fp8: FP8Config | None, train: str = "full") -> VLMPolicy:
        torch.manual_seed(0)
        config = VLMConfig(
            model=str(folder_of("qwen3_vl")), device="cpu", train=train, fp8=fp8, lora=LoraConfig(rank=2, alpha=4)
        )
        return VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=12))

    return build


@torch.no_grad()
def replayed(policy, rollout):
    return policy.score_recording(rollout.recording)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fp8_format", "train"),
    [
        ("e4m3", "full"),
        ("e5m2", "lora"),
        pytest.param("e4m3", "lora", marks=pytest.mark.slow),
        pytest.param("e5m2", "full", marks=pytest.mark.slow),
    ],
)
def test_a_replay_repeats_the_rollout_of_the_unified_flow_alone(policy_of, fp8_format, train):
    plain = policy_of(None, train)
    unified = policy_of(FP8Config(format=fp8_format), train)
    mixed = policy_of(FP8Config(flow="rollout", format=fp8_format), train)
    one, other = unified.rollout(REQUESTS, seed=0), mixed.rollout(REQUESTS, seed=0)
    assert one.token_ids == other.token_ids
    assert torch.equal(one.log_probs, other.log_probs)
    assert unified.replay_gap(one) < 1e-5
    assert mixed.replay_gap(other) > 1e-3
    torch.testing.assert_close(replayed(mixed, other), replayed(plain, other), atol=1e-6, rtol=0)
    torch.testing.assert_close(replayed(unified, one), one.log_probs * one.mask, atol=1e-5, rtol=0)


@pytest.mark.parametrize("train", ["full", "lora"])
def test_layers_that_round_are_those_of_the_language_model(policy_of, train):
    policy, plain = policy_of(FP8Config(), train), policy_of(None, train)
    rounding = [name for name, module in policy.vlm.model.named_modules() if isinstance(module, FP8Linear)]
    assert rounding and all("language_model" in name for name in rounding)
    assert not any("lora_" in name or "lm_head" in name or "visual" in name for name in rounding)
    assert list(policy.parameters_to_train()) == list(plain.parameters_to_train())
    for name, parameter in policy.parameters_to_train().items():
        assert torch.equal(parameter, plain.parameters_to_train()[name])


@pytest.mark.integration
def test_every_rounding_layer_has_a_gradient_and_an_update_is_seen_by_the_next_rollout(policy_of):
    policy = policy_of(FP8Config())
    rollout = policy.rollout(REQUESTS, seed=0)
    policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda out: out.log_probs.sum().backward())
    layers = [module for module in policy.vlm.model.modules() if isinstance(module, FP8Linear)]
    assert all(layer.weight.grad.abs().sum() > 0 for layer in layers)
    with torch.no_grad():
        for layer in layers:
            layer.weight.add_(layer.weight.grad, alpha=0.5)
    after = policy.rollout(REQUESTS, seed=0)
    assert policy.replay_gap(after) < 1e-5
    assert not torch.equal(after.log_probs, rollout.log_probs)


@pytest.mark.integration
def test_a_sampling_copy_has_numbers_of_its_own(policy_of):
    policy = policy_of(FP8Config(flow="rollout"))
    copied = sampling_copy(policy)
    rollout = copied.rollout(REQUESTS, seed=0)
    assert torch.equal(rollout.log_probs, policy.rollout(REQUESTS, seed=0).log_probs)
    with copied._fp8.of_rollout():
        torch.testing.assert_close(replayed(policy, rollout), replayed(policy_of(None), rollout), atol=1e-6, rtol=0)


@pytest.mark.integration
def test_a_checkpoint_has_the_numbers_that_are_not_rounded(policy_of, tmp_path):
    policy = policy_of(FP8Config())
    policy.save(tmp_path / "saved")
    found = VLMPolicy.from_config(VLMConfig(model=str(tmp_path / "saved"), device="cpu"), TokenSamplingConfig())
    before = policy_of(None).vlm.model.state_dict()
    for name, values in found.vlm.model.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(values, before[name.replace(".base_layer", "")])


def test_settings_that_cannot_work_are_refused_by_name():
    def errors(*overrides: str) -> list[str]:
        return validation_errors(load_config("shapes-reasoning", overrides))

    assert errors("policy.fp8={}") == []
    assert errors("policy.fp8.flow=rollout", "algorithm.mismatch.cap=2.0") == []
    assert errors("policy.fp8.flow=rollout", "training.max_replay_gap=10") == []
    assert "policy.fp8.flow: rollout computes other" in errors("policy.fp8.flow=rollout")[0]
    served = ["run.servers.urls=['http://127.0.0.1:8000']", "run.servers.weights=folder", "algorithm.mismatch.cap=2.0"]
    assert "policy.fp8: servers write" in errors("policy.fp8={}", *served)[0]
    with pytest.raises(ConfigError, match=r"policy.fp8: the language model of Sequential has no linear layer"):
        layers_for_fp8(nn.Sequential(nn.LayerNorm(3)))
