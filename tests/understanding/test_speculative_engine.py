"""Speculative decoding: the same answers with any drafter, the number of passes, and what is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.loading.load import load_config
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import DraftConfig, TokenSamplingConfig
from mmrl.config.validation import validation_errors
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.sampling_copy import sampling_copy
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.rollout_engine import TransformersEngine
from mmrl.understanding.speculative_engine import SpeculativeEngine
from mmrl.understanding.vlm import VLM
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_kernels.integrations.transformers import use_shared_prompts
from tests.understanding.media import as_png, picture

PICTURED = Sample("shown", prompt="What?", images=(as_png(picture(1)),))
WRITTEN = Sample("said", prompt="Two and two?")
WARM = TokenSamplingConfig(max_new_tokens=12)
GREEDY = TokenSamplingConfig(max_new_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def vlm(vlm_of) -> VLM:
    """Every sixteenth byte ends an answer, so that answers end early and apart."""
    tiny = vlm_of("qwen3_vl")
    use_shared_prompts(tiny.model)
    return replace(tiny, ends=torch.cat([tiny.ends, torch.arange(0, 256, 16)]))


@pytest.fixture(scope="module")
def encoded(vlm):
    encoder = PromptEncoder(vlm, MediaReader(MediaBudget()))
    return [encoder.encode(sample) for sample in (PICTURED, WRITTEN)]


def engine(vlm: VLM, **settings) -> SpeculativeEngine:
    return SpeculativeEngine.begin(vlm, DraftConfig(**settings))


@pytest.mark.parametrize("settings", [{"tokens": 1}, {"tokens": 4, "order": 2}, {"tokens": 7, "order": 5}])
@pytest.mark.parametrize("sampling", [WARM, TokenSamplingConfig(max_new_tokens=12, top_p=0.6, temperature=0.7)])
def test_answers_are_those_without_guesses(vlm, encoded, settings, sampling):
    plain = engine(vlm).generate(encoded, [5, 4], sampling, 3)  # an untaught drafter guesses nothing
    taught = engine(vlm, **settings)
    for row in plain.token_ids[::2]:  # some guesses are right, and the others are not
        taught.drafter.learn([], row)
    found = taught.generate(encoded, [5, 4], sampling, 3)
    assert found.token_ids == plain.token_ids
    for mine, expected in zip(found.log_probs, plain.log_probs, strict=True):
        assert mine == pytest.approx(expected, abs=2e-5)
    assert 0 < taught.metrics()["drafts/accepted"] < 1
    assert len({len(row) for row in plain.token_ids}) > 2


def test_greedy_answers_are_those_of_the_engine_without_guesses(vlm, encoded):
    plain = TransformersEngine(vlm, shares_prompts=True).generate(encoded, [1, 1], GREEDY, 0)
    taught = engine(vlm)
    for _ in range(2):
        assert taught.generate(encoded, [1, 1], GREEDY, 0).token_ids == plain.token_ids


def test_a_drafter_that_knows_the_answer_needs_a_pass_for_every_five_tokens(vlm, encoded):
    endless = replace(vlm, ends=torch.tensor([-1]))
    taught = engine(endless, tokens=4, order=12)
    (answer,) = taught.generate(encoded[:1], [1], GREEDY, 0).token_ids
    assert len(answer) == 12 and taught.metrics() == {"drafts/accepted": 0.0, "drafts/tokens_per_pass": 1.0}
    assert taught.generate(encoded[:1], [1], GREEDY, 0).token_ids == [answer]
    # the prompt's pass writes 1 token, the next two 5 each, and the last one the twelfth, with nothing left to guess
    assert taught.metrics() == {"drafts/accepted": 1.0, "drafts/tokens_per_pass": 12 / 4}


def test_a_row_has_its_noise_whatever_rows_are_beside_it(vlm, encoded):
    many = engine(vlm).generate(encoded, [3, 3], WARM, 5)
    few = engine(vlm).generate(encoded[:1], [2], WARM, 5)
    assert few.token_ids == many.token_ids[:2]
    assert engine(vlm).generate(encoded[:1], [2], WARM, 6).token_ids != few.token_ids


@pytest.fixture
def policy(folder_of) -> VLMPolicy:
    config = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", train="full")
    return VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=10, drafts=DraftConfig(tokens=3)))


def test_a_replay_repeats_the_rollout_and_the_drafter_learns_from_it(policy):
    requests = [RolloutRequest(sample, 4, group) for group, sample in enumerate((PICTURED, WRITTEN))]
    first, again = policy.rollout(requests, seed=0), policy.rollout(requests, seed=0)
    assert first.token_ids == again.token_ids
    assert policy.replay_gap(first) < 2e-5 and policy.replay_gap(again) < 2e-5
    metrics = policy.rollout_metrics()
    assert metrics["drafts/accepted"] > 0.2 and metrics["drafts/tokens_per_pass"] > 1.1
    assert policy.rollout_metrics()["drafts/accepted"] == 0
    assert sampling_copy(policy).rollout(requests, seed=0).token_ids == first.token_ids


def test_settings_that_cannot_work_are_refused_by_name(folder_of):
    config = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", attention="sdpa")
    with pytest.raises(ConfigError, match=r"sampling\.drafts: .* leave drafts out"):
        VLMPolicy.from_config(config, TokenSamplingConfig(drafts=DraftConfig()))
    served = ["run.servers.urls=['http://127.0.0.1:8000']", "run.servers.weights=folder", "algorithm.mismatch.cap=2.0"]
    found = validation_errors(load_config("shapes-reasoning", ["sampling.drafts={}", *served]))
    assert found[0].startswith("sampling.drafts: the drafter of a server")
    (alone,) = validation_errors(load_config("shapes-reasoning", ["evaluation.sampling={kind: tokens, drafts: {}}"]))
    assert alone.startswith("evaluation.sampling.drafts: evaluations are written as rollouts are")
