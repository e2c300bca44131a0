"""Demonstrations and pairs as they stand in the data set."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.preference import DPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.imitation import SupervisedLearning
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.rollouts.offline import Demonstrations, PreferencePairs, check_answers, preference_pair
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect


def paired_samples(**fields):
    return [
        Sample(**{**vars(s), "demonstration": s.answer, "chosen": s.answer, "rejected": "3 3", **fields})
        for s in questions()
    ]


def demonstrations(policy, samples=None, micro_batch=3, groups=8):
    return Demonstrations(policy, PromptSampler(samples or paired_samples(), groups, seed=0), micro_batch, seed=0)


def pairs(policy, micro_batch=4, groups=3):
    return PreferencePairs(policy, PromptSampler(paired_samples(), groups, seed=0), micro_batch)


def test_demonstrations_have_equal_advantages():
    found = collect(demonstrations(TokenPolicy()))
    assert [batch.rollout.rows for batch in found.micro_batches] == [3, 3, 2]
    for batch in found.micro_batches:
        assert batch.rollout.media == [sample.answer for sample in batch.rollout.samples]
        assert torch.equal(batch.step_advantages, batch.rollout.mask.float()) and batch.scored.all()
    assert found.metrics == {"tokens": 24.0, "length": 3.0, "length_by_source/even": 3.0, "length_by_source/odd": 3.0}


def test_one_of_several_demonstrations_is_sampled_at_a_time():
    source = demonstrations(TokenPolicy(), paired_samples(demonstration=["1", "2", "3"]), 8)
    texts = [batch.rollout.media for n in range(6) for batch in collect(source, n).micro_batches]
    assert {text for each in texts for text in each} == {"1", "2", "3"}
    assert (
        texts[0]
        == collect(demonstrations(TokenPolicy(), paired_samples(demonstration=["1", "2", "3"]), 8))
        .micro_batches[0]
        .rollout.media
    )


def test_pairs_are_adjacent_and_never_split():
    found = collect(pairs(TokenPolicy()))
    assert [batch.rollout.rows for batch in found.micro_batches] == [4, 2]
    for batch in found.micro_batches:
        assert batch.advantages.tolist() == [1.0, -1.0] * (batch.rollout.rows // 2)
        for row in range(0, batch.rollout.rows, 2):
            sample = batch.rollout.samples[row]
            assert batch.rollout.samples[row + 1] is sample
            assert batch.rollout.group_index[row] == batch.rollout.group_index[row + 1]
            assert batch.rollout.media[row : row + 2] == [sample.chosen, sample.rejected]
        assert torch.equal(batch.step_advantages, batch.advantages[:, None].where(batch.rollout.mask, 0.0))
    with pytest.raises(ValueError, match=r"data\.micro_batch: 3 rows would split a pair"):
        pairs(TokenPolicy(), micro_batch=3)


def test_an_axis_says_which_answer_of_a_pair_is_chosen():
    axes = {"right": "chosen", "brief": "rejected"}
    samples = paired_samples(metadata={"axes": axes})
    prompts = PromptSampler(samples, 3, seed=0)
    for axis, expected in ((None, "chosen"), ("right", "chosen"), ("brief", "rejected")):
        source = PreferencePairs(TokenPolicy(), prompts, 6, axis)
        (batch,) = collect(source).micro_batches
        assert batch.advantages.tolist() == [1.0, -1.0] * 3
        assert batch.rollout.media[0::2] == [getattr(sample, expected) for sample in batch.rollout.samples[0::2]]
        check_answers(samples, "pairs", TokenPolicy(), axis)
    for broken in ({}, {"brief": "both"}):
        with pytest.raises(DataError, match=r"expected metadata\.axes\.brief to be chosen or rejected"):
            check_answers(paired_samples(metadata={"axes": broken}), "pairs", TokenPolicy(), "brief")


def probability(policy, answer):
    """The mean probability of a text of each question."""
    table = policy.logits.detach().softmax(-1)
    texts = [[int(word) for word in answer(s).split()] + [0] for s in paired_samples()]
    return sum(table[n, range(len(ids)), ids].prod().item() for n, ids in enumerate(texts)) / len(texts)


@pytest.mark.parametrize("kind", ["demonstrations", "pairs"])
def test_offline_training_raises_demonstration_likelihood(kind):
    policy = TokenPolicy()
    if kind == "pairs":
        source, objective = pairs(policy, 16, 8), PreferenceLearning(policy, DPOConfig())
    else:
        source, objective = demonstrations(policy, None, 16), SupervisedLearning(policy, SFTConfig())
    optimizer = torch.optim.SGD([policy.logits], lr=20.0)
    before = probability(policy, lambda s: s.chosen), probability(policy, lambda s: s.rejected)
    for iteration in range(10):
        optimizer.zero_grad()
        for batch in collect(source, iteration).micro_batches:
            objective.backward(batch, 1.0, 0, MetricAccumulator())
        optimizer.step()
        policy.version += 1
    after = probability(policy, lambda s: s.chosen), probability(policy, lambda s: s.rejected)
    assert after[0] > 2 * before[0]
    assert after[1] < before[1] or kind == "demonstrations"  # which know nothing of what is not shown


def test_incomplete_samples_are_reported_together():
    bad = [*paired_samples(), Sample(id="x"), Sample(id="y", demonstration=3, chosen="a", rejected="a")]
    with pytest.raises(DataError, match="2 of 10 samples lack a text as 'demonstration'; the first is 'x'"):
        check_answers(bad, "demonstrations", TokenPolicy())
    with pytest.raises(DataError, match="2 of 10 samples lack a text under 'chosen' and another under 'rejected'"):
        check_answers(bad, "pairs", TokenPolicy())
    check_answers(paired_samples(), "pairs", TokenPolicy())
    with pytest.raises(DataError, match="sample 's0' has no demonstration"):
        collect(demonstrations(TokenPolicy(), questions(1), groups=1))
    with pytest.raises(DataError, match="needs two different texts"):
        preference_pair(bad[-1])


def test_offline_sources_resume():
    for make in (demonstrations, pairs):
        straight, resumed = make(TokenPolicy()), make(TokenPolicy())
        for n in range(3):
            collect(straight, n)
        resumed.load_state_dict(straight.state_dict())
        one, other = collect(straight, 3), collect(resumed, 3)
        assert [b.rollout.media for b in one.micro_batches] == [b.rollout.media for b in other.micro_batches]
