"""Sampling from the weighted sum of several models' logits."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.joint_engine import ModelLogits, joint_logits
from mmrl.understanding.rollout_engine import TransformersEngine
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_png, picture
from tests.understanding.turn_environments import Shows

REQUESTS = [
    RolloutRequest(Sample("short", prompt="Two and two?"), 5, 0),
    RolloutRequest(Sample("long", prompt="A much longer question than that?"), 3, 1),
    RolloutRequest(Sample("shown", prompt="What?", images=(as_png(picture(1)),)), 2, 2),
]


@pytest.fixture(scope="module")
def base(new_player) -> VLMPolicy:
    return new_player("qwen3_vl")


@pytest.fixture(scope="module")
def guide(new_player) -> VLMPolicy:
    """The same model with other weights, which it had none of before training."""
    policy = new_player("qwen3_vl")
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=noise) * parameter.std().nan_to_num(0.1))
    return policy


def sampled(policy, *models, requests=REQUESTS, seed=0):
    with joint_logits(policy, models):
        return policy.rollout(requests, seed)


@torch.no_grad()
def next_token_logits(policy, prompt, tokens):
    """The logits [T, V], float64, that predict the tokens of one answer in text, by a pass without a cache."""
    ids = torch.cat([prompt.inputs["input_ids"], torch.tensor([tokens])], dim=1)
    logits = policy.vlm.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].double()
    logits[:, policy.vlm.suppressed] = -torch.inf
    return logits[-len(tokens) - 1 : -1]


def test_one_model_with_weight_one_samples_as_by_itself(base, guide):
    alone, joint = base.rollout(REQUESTS, 0), sampled(base, ModelLogits(base, 1.0), ModelLogits(guide, 0.0))
    assert joint.token_ids == alone.token_ids
    assert torch.equal(joint.log_probs, alone.log_probs)
    other = sampled(base, ModelLogits(base, 0.0), ModelLogits(guide, 1.0))
    assert other.token_ids == guide.rollout(REQUESTS, 0).token_ids != alone.token_ids


def test_weights_of_equal_models_add_up(base):
    alone = base.rollout(REQUESTS, 1)
    joint = sampled(base, ModelLogits(base, 1.75), ModelLogits(base, -0.75), seed=1)
    assert joint.token_ids == alone.token_ids
    torch.testing.assert_close(joint.log_probs, alone.log_probs, atol=1e-5, rtol=0)


def test_log_probs_are_those_of_the_weighted_sum(base, guide):
    """p(token) ~ p_base(token) p_guide(token)^w, of logits that plain passes of both models compute."""
    weight, heat = 0.6, base.sampling.temperature
    rollout = sampled(base, ModelLogits(base, 1.0), ModelLogits(guide, weight), requests=REQUESTS[:2], seed=2)
    seen = []
    for row, tokens in enumerate(rollout.token_ids):
        prompt = rollout.recording.prompts[rollout.recording.prompt_of[row]]
        own, other = (next_token_logits(policy, prompt, tokens) for policy in (base, guide))
        expected = ((own + weight * other) / heat).log_softmax(-1)[range(len(tokens)), tokens]
        torch.testing.assert_close(rollout.log_probs[row, : len(tokens)].double(), expected, atol=2e-5, rtol=0)
        wrong = (own / heat).log_softmax(-1)[range(len(tokens)), tokens]
        seen.append((wrong - expected).abs().max().item())
    assert max(seen) > 0.01  # the guide moves the distribution
    assert len({len(tokens) for tokens in rollout.token_ids}) > 1  # rows ended apart


def test_a_model_may_be_the_policy_before_training(guide):
    """Its parameters are exchanged for each token, and are those of training afterwards."""
    trained = next(iter(guide.parameters_to_train().values())).detach().clone()
    joint = sampled(guide, ModelLogits(guide, 1.0, guide.reference))
    with guide.reference():
        alone = guide.rollout(REQUESTS, 0)
    assert joint.token_ids == alone.token_ids
    assert torch.equal(next(iter(guide.parameters_to_train().values())), trained)


def test_a_model_without_weight_is_not_computed(base, guide):
    calls = []
    handle = guide.vlm.model.register_forward_pre_hook(lambda *_: calls.append(1))
    sampled(base, ModelLogits(base, 1.0), ModelLogits(guide, 0.0))
    assert not calls
    sampled(base, ModelLogits(base, 1.0), ModelLogits(guide, 0.1))
    handle.remove()
    assert calls


def test_output_layers_may_be_padded_differently(base, new_player):
    """The rows beyond the smaller layer are no tokens, and never drawn."""
    padded = new_player("qwen3_vl")
    before = padded.vlm.model.get_output_embeddings().out_features
    padded.vlm.model.resize_token_embeddings(before + 8)
    with torch.no_grad():
        padded.vlm.model.get_output_embeddings().weight[before:] += 9.0
    joint = sampled(base, ModelLogits(padded, 0.5), ModelLogits(base, 0.5))
    assert joint.token_ids == base.rollout(REQUESTS, 0).token_ids


def test_greedy_answers_take_the_largest_sum(base, guide):
    greedy = TokenSamplingConfig(max_new_tokens=1, temperature=0.0)
    request = RolloutRequest(REQUESTS[0].sample, 1, 0, sampling=greedy)
    rollout = sampled(base, ModelLogits(base, 1.0), ModelLogits(guide, 2.0), requests=[request])
    prompt, tokens = rollout.recording.prompts[0], rollout.token_ids[0]
    own, other = (next_token_logits(policy, prompt, tokens) for policy in (base, guide))
    assert tokens == [int((own + 2.0 * other)[0].argmax())]


@pytest.mark.integration
def test_episodes_of_several_turns_are_written_by_the_sum(new_player, guide):
    """Every turn is read from the beginning, by each model; the rows are those that the models write by themselves."""
    policy = new_player("qwen3_vl")
    policy.play_in(Shows(("text", "picture")))
    alone, joint = policy.rollout(REQUESTS, 0), sampled(policy, ModelLogits(policy, 1.0))
    assert joint.token_ids == alone.token_ids
    torch.testing.assert_close(joint.log_probs, alone.log_probs, atol=2e-5, rtol=0)
    assert sampled(policy, ModelLogits(policy, 1.0), ModelLogits(guide, 1.0)).token_ids != alone.token_ids


def test_what_cannot_be_added_is_refused(base, guide, new_player):
    with pytest.raises(ConfigError, match="no model has a weight other than 0"), joint_logits(base, []):
        pass
    other = new_player("llava_onevision")
    with pytest.raises(ConfigError, match="it is of the family"), joint_logits(base, [ModelLogits(other, 1.0)]):
        pass
    engine = base.engine
    base.engine = object()
    try:
        with pytest.raises(ConfigError, match="servers write the answers"), joint_logits(base, [ModelLogits(base, 1)]):
            pass
    finally:
        base.engine = engine
    with pytest.raises(ZeroDivisionError), joint_logits(base, [ModelLogits(guide, 1.0)]):
        raise ZeroDivisionError
    assert base.engine is engine and type(engine) is TransformersEngine
