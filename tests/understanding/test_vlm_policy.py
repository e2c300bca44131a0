"""`VLMPolicy` where the families' own tests do not reach: given texts, beginnings, checkpointing, half precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.config.media import MediaConfig
from mmrl.config.policy import LoraConfig, ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.policy import Capability, Policy, StepOutputs, TeacherForcingPolicy
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding import reference_scores as plain
from tests.understanding.media import as_gif, as_png, frames, picture

WITH_IMAGE = Sample("shown", prompt="What?", images=(as_png(picture(1)),))
PAIR = Sample("pair", prompt="Which of both?", images=(as_png(picture(2)), as_png(picture(3))))
TEXT_ONLY = Sample("said", prompt="Two and two?")
WARM = TokenSamplingConfig(max_new_tokens=6, temperature=0.7)
Maker = Callable[..., VLMPolicy]


@pytest.fixture
def make(folder_of) -> Maker:
    def made(name: str = "qwen3_vl", sampling: TokenSamplingConfig = WARM, **changes: Any) -> VLMPolicy:
        parts = dict(vision=ModelPartConfig(train=True), connector=ModelPartConfig(train=True))
        settings = dict(model=str(folder_of(name)), device="cpu", train="full", lora=LoraConfig(rank=2)) | parts
        return VLMPolicy.from_config(VLMConfig(**settings | changes), sampling)

    return made


def requests(*samples: Sample, n: int = 2, **further: Any) -> list[RolloutRequest]:
    return [RolloutRequest(sample, n, group, **further) for group, sample in enumerate(samples)]


def replayed(policy: VLMPolicy, rollout, step_indices=None) -> StepOutputs:
    found: list[StepOutputs] = []
    policy.replay(rollout, range(rollout.log_probs.shape[1]) if step_indices is None else step_indices, found.append)
    (decisions,) = found  # all at once
    return decisions


def test_vlm_policy_has_its_protocol_and_capabilities(make):
    policy: Policy = make()
    teachable: TeacherForcingPolicy = make()
    tokens = {Capability.LOG_PROBS, Capability.ENTROPY, Capability.TEACHER_FORCE}
    assert policy.capabilities == {*tokens, Capability.SELECT_ROWS, Capability.FUSED_LOSS, Capability.ROW_STARTS}
    assert teachable.version == 0


def test_rollouts_hold_tokens_and_log_probs(make):
    policy = make()
    policy.version = 3
    rollout = policy.rollout([RolloutRequest(WITH_IMAGE, 3, 7), RolloutRequest(TEXT_ONLY, 1, 9)], seed=0)
    assert rollout.group_index.tolist() == [7, 7, 7, 9]
    assert [sample.id for sample in rollout.samples] == ["shown"] * 3 + ["said"]
    assert rollout.policy_version == 3
    assert rollout.mask.sum(1).tolist() == [len(answer) for answer in rollout.token_ids]
    assert rollout.mask.shape[1] == max(map(len, rollout.token_ids))
    assert not rollout.log_probs[~rollout.mask].any()
    decode = policy.vlm.tokenizer.decode
    assert rollout.media == [decode(answer, skip_special_tokens=True) for answer in rollout.token_ids]


def test_rollouts_are_deterministic_by_seed(make):
    policy = make()
    first, again, other = (policy.rollout(requests(WITH_IMAGE, TEXT_ONLY), seed) for seed in (1, 1, 2))
    assert first.token_ids == again.token_ids
    assert first.log_probs.equal(again.log_probs)
    assert first.token_ids != other.token_ids


def test_selected_steps_replay_as_among_all(make):
    policy = make()
    rollout = policy.rollout(requests(WITH_IMAGE, TEXT_ONLY), seed=0)
    whole, some = replayed(policy, rollout), replayed(policy, rollout, [4, 1])
    assert some.step_indices == (4, 1)
    assert some.log_probs.equal(whole.log_probs[:, [4, 1]])
    assert some.entropy.equal(whole.entropy[:, [4, 1]])


@pytest.mark.integration
def test_entropies_are_those_of_the_sampling_distribution(make):
    policy = make()
    rollout = policy.rollout(requests(WITH_IMAGE, n=1), seed=0)
    entropy = replayed(policy, rollout).entropy[0]
    model, processor = policy.vlm.model, policy.vlm.processor
    answer, never = rollout.token_ids[0], policy.vlm.suppressed.tolist()
    encoded = plain.encode(processor, WITH_IMAGE.prompt, [picture(1)])
    words = [word for word in range(len(processor.tokenizer)) if word not in never]
    with torch.no_grad():
        for place in range(len(answer)):
            each = [plain.log_probs(model, encoded, [*answer[:place], word], 0.7, never)[-1] for word in words[::40]]
            assert entropy[place] > 0 and all(value < 0 for value in each)
            logits = model(**begun(encoded, answer[:place])).logits[0, -1, words].double() / 0.7
            expected = torch.distributions.Categorical(logits=logits).entropy()
            assert entropy[place].item() == pytest.approx(expected.item(), abs=1e-4)


def begun(encoded: dict[str, Any], answer: list[int]) -> dict[str, Any]:
    tokens = torch.tensor([answer], dtype=torch.long)
    added = {"input_ids": tokens, "attention_mask": tokens * 0 + 1, "mm_token_type_ids": tokens * 0}
    return encoded | {name: torch.cat([encoded[name], more], dim=1) for name, more in added.items()}


@pytest.mark.parametrize("name", ["qwen3_vl", "paligemma"])
def test_prefills_are_read_and_are_no_decisions(make, name):
    policy = make(name)
    rollout = policy.rollout(requests(WITH_IMAGE, PAIR, start=RowStart(prefix="I see")), seed=0)
    assert policy.replay_gap(rollout) < 2e-5
    assert all(text.startswith("I see") for text in rollout.media)
    ahead, never = policy.vlm.encode("I see"), policy.vlm.suppressed.tolist()
    encoded = plain.encode(policy.vlm.processor, WITH_IMAGE.prompt, [picture(1)])
    answer = rollout.token_ids[0]
    with torch.no_grad():
        expected = plain.log_probs(policy.vlm.model, encoded, [*ahead, *answer], 0.7, never)[len(ahead) :]
    torch.testing.assert_close(rollout.log_probs[0, : len(answer)], expected, atol=2e-5, rtol=0)


def test_target_texts_are_scored_with_their_end_token(make):
    policy = make()
    targets = [TargetText(PAIR, "the left one", 0), TargetText(TEXT_ONLY, "four", 1), TargetText(PAIR, "the right", 0)]
    rollout = policy.score_targets(targets)
    end = policy.vlm.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert rollout.token_ids == [[*policy.vlm.encode(each.text), end] for each in targets]
    assert rollout.media == ["the left one", "four", "the right"]
    assert rollout.group_index.tolist() == [0, 1, 0]
    assert policy.replay_gap(rollout) == 0
    encoded = plain.encode(policy.vlm.processor, PAIR.prompt, [picture(2), picture(3)])
    with torch.no_grad():
        never = policy.vlm.suppressed.tolist()
        expected = plain.log_probs(policy.vlm.model, encoded, rollout.token_ids[2], 0.7, never)
    torch.testing.assert_close(rollout.log_probs[2, : len(expected)], expected, atol=2e-5, rtol=0)


def test_target_texts_can_be_scored_by_their_tokens(make):
    policy = make()
    written = policy.rollout(requests(WITH_IMAGE, n=3), seed=0)
    rows = zip(written.samples, written.media, written.token_ids, strict=True)
    targets = policy.score_targets([TargetText(sample, text, 0, tuple(ids)) for sample, text, ids in rows])
    assert targets.token_ids == written.token_ids
    torch.testing.assert_close(targets.log_probs, written.log_probs, atol=2e-5, rtol=0)


def test_target_texts_with_media_tokens_raise(make):
    with pytest.raises(DataError) as refused:
        make().score_targets([TargetText(TEXT_ONLY, "see <|image_pad|>", 0)])
    assert "'said': its target text contains <|image_pad|>" in str(refused.value)


def test_answers_end_as_in_the_chat_template(folder_of, tmp_path):
    """As Gemma 3's: it stops at two tokens, and was taught to write the second."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from mmrl.understanding.vlm import describe

    model = AutoModelForImageTextToText.from_pretrained(folder_of("gemma3"))
    processor = AutoProcessor.from_pretrained(folder_of("gemma3"))
    eos, turn = processor.tokenizer.convert_tokens_to_ids(["<bos>", "<end_of_turn>"])
    model.generation_config.eos_token_id = [eos, turn]
    vlm = describe(model, processor, torch.device("cpu"))
    assert vlm.ends.tolist() == [eos, turn]
    assert vlm.end == turn
    processor.chat_template = "{{ raise_exception('users alone') }}"
    assert describe(model, processor, torch.device("cpu")).end == eos


@pytest.mark.integration
@pytest.mark.parametrize("name", ["qwen3_vl", "smolvlm"])
def test_gradient_checkpointing_changes_no_value_or_gradient(make, name):
    shared, apart = make(name), make(name, gradient_checkpointing=True)
    clip = Sample("clip", prompt="What?", videos=(as_gif(frames(5, 4)),))
    rollout = shared.rollout(requests(WITH_IMAGE, PAIR, clip, TEXT_ONLY), seed=0)
    assert apart.replay_gap(rollout) < 2e-5
    gradients = []
    for policy in (shared, apart):
        decisions = replayed(policy, rollout)
        decisions.log_probs.sum().backward()
        torch.testing.assert_close(decisions.log_probs.detach(), rollout.log_probs, atol=2e-5, rtol=0)
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters_to_train().values()]))
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()
    assert apart.vlm.model.training is False


@pytest.mark.integration
@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("train", ["lora", "full"])
def test_half_precision_replay_gap_is_within_rounding(make, name, train):
    """Up to 0.07 was seen of the eleven families, and 5e-6 in float32."""
    policy = make(name, dtype="bfloat16", train=train, connector=ModelPartConfig(train=train == "full"))
    rollout = policy.rollout(requests(WITH_IMAGE, PAIR, TEXT_ONLY), seed=0)
    assert rollout.log_probs.dtype == torch.float32
    assert policy.replay_gap(rollout) < 0.15
    replayed(policy, rollout).log_probs.sum().backward()
    assert all(
        p.dtype == p.grad.dtype == torch.float32 for p in policy.parameters_to_train().values() if p.grad is not None
    )


def test_reference_scores_are_those_before_training(make):
    policy = make()
    rollout = policy.rollout(requests(WITH_IMAGE), seed=0)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter.mul_(1.1)
    assert policy.replay_gap(rollout) > 1e-2
    with policy.reference():
        assert policy.replay_gap(rollout) < 2e-5


def test_parts_have_separate_learning_rates(make):
    policy = make(vision=ModelPartConfig(train=True, lr_scale=0.1), connector=ModelPartConfig(train=True, lr_scale=0.5))
    assert {policy.lr_scale(name) for name in policy.parameters_to_train()} == {0.1, 0.5, 1.0}
    assert policy.lr_scale("model.visual.merger.linear_fc1.weight") == 0.5


def test_requests_may_set_sampling(make):
    policy = make()
    greedy = TokenSamplingConfig(temperature=0, max_new_tokens=3)
    rollout = policy.rollout(requests(WITH_IMAGE, sampling=greedy), seed=0)
    assert rollout.token_ids[0] == rollout.token_ids[1]
    assert rollout.log_probs.shape == (2, 3)
    assert policy.replay_gap(rollout) < 2e-5  # greedy answers are scored at temperature 1


def test_requests_of_a_call_that_differ_raise(make):
    policy = make()
    request = requests(WITH_IMAGE, n=1)[0]
    for other, key in ((replace(request, sampling=TokenSamplingConfig(temperature=0)), "sampling"),
                       (replace(request, max_turns=2), "max_turns")):  # fmt: skip
        with pytest.raises(ValueError, match=f"share their {key}: make a call for each"):
            policy.rollout([request, other], seed=0)


@pytest.mark.integration
def test_media_are_resized_to_their_budget(folder_of):
    config = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu")
    tight = MediaConfig.model_validate({"image": {"max_pixels": 32 * 32}})
    large = replace(WITH_IMAGE, images=(as_png(picture(1, 64, 64)),))
    lengths = [
        VLMPolicy.from_config(config, WARM, media).rollout(requests(large, n=1), 0).recording.prompts[0].length
        for media in (None, tight)
    ]
    assert lengths[0] - lengths[1] == 16 - 4


def test_missing_models_raise():
    with pytest.raises(ConfigError, match=r"policy\.model: no/such/model cannot be loaded as a vision-language model"):
        VLMPolicy.from_config(VLMConfig(model="no/such/model", device="cpu"), WARM)
