"""A critic on real small models: each value from the hidden state before its token, packed or by itself."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.policy import LoraConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.value_model import ValueModel
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding import reference_scores
from tests.understanding.media import as_png, picture
from tests.understanding.turn_environments import Shows

WITH_IMAGE = Sample("shown", prompt="What?", images=(as_png(picture(1)),))
PLAIN = Sample("plain", prompt="Which one of them is it, then?")


def config(folder, **changes):
    return VLMConfig(model=str(folder), device="cpu", **({"train": "full"} | changes))


def critic_of(folder, **changes):
    """Return a critic whose output layer is no longer 0."""
    critic = ValueModel.from_config(config(folder, **changes))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        head = critic.vlm.model.get_output_embeddings()
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator))
    return critic


@pytest.mark.integration
@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm", "paligemma"])
def test_values_are_those_of_the_states_before_each_token(folder_of, family):
    """The oracle: transformers alone on prompt and answer of one row, with the critic's output layer."""
    folder = folder_of(family)
    policy = VLMPolicy.from_config(config(folder, train="lora"), TokenSamplingConfig(max_new_tokens=5))
    rollout = policy.rollout([RolloutRequest(WITH_IMAGE, 3, 0)], seed=0)
    critic = critic_of(folder)
    found = critic.values(rollout)
    encoded = reference_scores.encode(critic.vlm.processor, "What?", [picture(1)])
    for row, ids in enumerate(rollout.token_ids):
        expected = reference_scores.outputs(critic.vlm.model, encoded, ids)
        assert expected.shape[1] == 1
        torch.testing.assert_close(found[row, : len(ids)], expected[:, 0], atol=2e-4, rtol=1e-3)
        assert (found[row, len(ids) :] == 0).all()


@pytest.mark.integration
def test_packed_and_single_rows_have_the_same_values_and_gradients(folder_of):
    folder = folder_of("qwen3_vl")
    policy = VLMPolicy.from_config(config(folder, train="lora"), TokenSamplingConfig(max_new_tokens=5))
    rollout = policy.rollout(
        [RolloutRequest(sample, 3, group) for group, sample in enumerate((WITH_IMAGE, PLAIN))], seed=0
    )
    packed, single = critic_of(folder, attention="mmrl"), critic_of(folder, attention="sdpa")
    found = []
    for critic in (packed, single):
        critic.values(rollout).square().sum().backward()
        found.append({name: p.grad for name, p in critic.parameters_to_train().items() if p.grad is not None})
    assert found[0].keys() == found[1].keys() and len(found[0]) > 5
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], atol=1e-3, rtol=1e-3)


@pytest.mark.integration
def test_episodes_have_a_value_before_each_own_token(folder_of, new_player):
    folder, policy = folder_of("qwen3_vl"), new_player("qwen3_vl")
    policy.play_in(Shows(("text", "picture")))
    rollout = policy.rollout([RolloutRequest(WITH_IMAGE, 2, 0)], seed=0)
    packed, single = critic_of(folder, attention="mmrl"), critic_of(folder, attention="sdpa")
    values = packed.values(rollout)
    assert rollout.channel[rollout.mask].max() > 0 and (values[rollout.mask] != 0).all()
    torch.testing.assert_close(values, single.values(rollout), atol=2e-4, rtol=1e-3)


@pytest.mark.integration
@pytest.mark.parametrize("train", ["full", "lora"])
def test_values_begin_at_0_and_are_saved_with_the_head(folder_of, tmp_path, train):
    folder = folder_of("qwen3_vl")
    policy = VLMPolicy.from_config(config(folder, train="lora"), TokenSamplingConfig(max_new_tokens=4))
    rollout = policy.rollout([RolloutRequest(PLAIN, 2, 0)], seed=0)
    critic = ValueModel.from_config(config(folder, train=train, lora=LoraConfig(rank=4)))
    assert critic.values(rollout).abs().max() == 0
    head = critic.vlm.model.get_output_embeddings()
    names = critic.parameters_to_train()
    assert any(parameter is head.weight for parameter in names.values())
    assert any("lora" in name for name in names) == (train == "lora")
    with torch.no_grad():
        for parameter in names.values():
            parameter.add_(0.05)
    critic.save(tmp_path)
    again = ValueModel.from_config(config(folder, train=train, lora=LoraConfig(rank=4)))
    again.load(tmp_path)
    assert torch.equal(again.values(rollout), critic.values(rollout)) and critic.values(rollout).abs().max() > 0
    other = ValueModel.from_config(config(folder, train="full" if train == "lora" else "lora"))
    with pytest.raises(ConfigError, match="holds another critic"):
        other.load(tmp_path)


@pytest.mark.slow
def test_models_that_scale_their_outputs_are_refused(folder_of):
    with pytest.raises(ConfigError, match="changes its outputs after the output layer"):
        ValueModel.from_config(config(folder_of("gemma3n")))
