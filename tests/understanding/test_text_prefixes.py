"""Texts after a prefix, models with other tokenizers, and frozen models, on real small models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.build.load_models import build_models
from mmrl.build.policies import build_policy
from mmrl.config.named_models import NamedModelConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText
from mmrl.training.run_models import NamedModels
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_png, picture

WITH_IMAGE = Sample("shown", prompt="What?", images=(as_png(picture(1)),))


@pytest.fixture(scope="module")
def policy(folder_of) -> VLMPolicy:
    config = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", train="full")
    return VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=6))


def test_a_prefix_is_read_and_is_no_decision(policy):
    found = policy.score_targets([TargetText(WITH_IMAGE, "so", 0, prefix="because "), TargetText(WITH_IMAGE, "so", 0)])
    length = len(policy.vlm.encode("because "))
    assert found.mask[0].tolist()[:length] == [False] * length and found.mask[0, length:].all()
    assert found.media[0] == "because so"
    prefixed = policy.score_targets([TargetText(WITH_IMAGE, "so", 0, start=RowStart(prefix="because "))])
    torch.testing.assert_close(found.log_probs[0][found.mask[0]], prefixed.log_probs[0][prefixed.mask[0]])
    assert not torch.allclose(found.log_probs[0][found.mask[0]], found.log_probs[1][found.mask[1]])


def test_the_handle_gives_the_log_probs_of_a_text_and_its_end(policy):
    text = "it is a picture"
    rollout = policy.score_targets([TargetText(WITH_IMAGE, text, 0)])
    scorer = NamedModels(policy, {}, {}).scorers["policy"]
    found = scorer.log_probs([TextQuery(WITH_IMAGE, text)])[0]
    expected = rollout.log_probs[0][rollout.mask[0]]
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)


def test_the_entropy_of_a_token_is_that_of_all_tokens_that_could_stand_there(policy):
    vocabulary = policy.vlm.model.get_output_embeddings().weight.shape[0]
    allowed = [each for each in range(vocabulary) if each not in set(policy.vlm.suppressed.tolist())]
    targets = [TargetText(WITH_IMAGE, "", 0, token_ids=(each,), prefix="so ") for each in allowed]
    rollouts = [policy.score_targets(targets[first : first + 512]) for first in range(0, len(targets), 512)]
    logs = torch.cat([rollout.log_probs[rollout.mask] for rollout in rollouts]).detach().double()
    assert len(logs) == len(allowed) and logs.exp().sum().item() == pytest.approx(1.0, abs=1e-4)
    scorer = NamedModels(policy, {}, {}).scorers["policy"]
    empty, longer = scorer.entropies([TextQuery(WITH_IMAGE, "", "so "), TextQuery(WITH_IMAGE, "it is", "so ")])
    assert empty.shape == (1,) and len(longer) == 1 + len(policy.vlm.encode("it is"))
    assert empty[0] == pytest.approx(-(logs.exp() * logs).sum().item(), abs=1e-4)
    assert longer[0] == pytest.approx(empty[0], abs=1e-5) and abs(longer[1] - longer[0]) > 1e-5


def test_a_text_with_a_placeholder_is_refused_also_where_that_is_token_0(policy, monkeypatch):
    monkeypatch.setattr(policy, "vlm", replace(policy.vlm, suppressed=torch.tensor([0])))
    with pytest.raises(DataError, match=r"'shown': its target text contains .*, a placeholder that is never written"):
        policy.score_targets([TargetText(WITH_IMAGE, "", 0, token_ids=(0,))])


def run_config(**models: NamedModelConfig):
    from mmrl.config.loading.load import load_config

    config = load_config("shapes-reasoning")
    return config.model_copy(update={"models": models})


@pytest.mark.integration
def test_a_teacher_is_frozen_and_one_with_another_tokenizer_is_refused_by_name():
    config = run_config(teacher=NamedModelConfig(model="shapeworld:sums-twice"))
    policy = build_policy(config.policy, config.sampling, config.media)
    teacher = build_models(config, policy)["teacher"].policy
    assert not any(parameter.requires_grad for parameter in teacher.vlm.model.parameters())
    assert not teacher.parameters_to_train() and policy.parameters_to_train()
    sample = Sample("s", prompt="3+5=")
    rollout = policy.rollout([RolloutRequest(sample, 3, 0)], seed=0)
    moved = build_models(config, policy)["teacher"].log_probs(rollout, range(rollout.mask.shape[1]))
    assert moved.shape == rollout.log_probs.shape and not torch.allclose(moved, rollout.log_probs)
    with pytest.raises(ConfigError, match=r"models.other: shapeworld cannot score what the policy writes: its tokeni"):
        build_models(run_config(other=NamedModelConfig(model="shapeworld")), policy)


@pytest.mark.integration
def test_a_teacher_may_be_the_folder_of_a_checkpoint(tmp_path: Path):
    config = run_config()
    policy = build_policy(config.policy, config.sampling, config.media)
    with torch.no_grad():
        next(iter(policy.parameters_to_train().values())).add_(0.5)
    policy.save(tmp_path)
    teacher = build_models(run_config(teacher=NamedModelConfig(model=str(tmp_path))), policy)["teacher"]
    sample = Sample("s", prompt="3+5=")
    rollout = policy.rollout([RolloutRequest(sample, 2, 0)], seed=0)
    again = teacher.log_probs(rollout, range(rollout.mask.shape[1]))
    torch.testing.assert_close(again[rollout.mask], rollout.log_probs[rollout.mask], atol=1e-5, rtol=0)
