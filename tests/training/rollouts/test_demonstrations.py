"""Demonstrations among the policy's own answers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.build.data_samplers import build_demonstrations
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.data import DataConfig, MixedDemonstrationsConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards import GroupReward
from mmrl.rollout_request import RolloutRequest
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.demonstrations import MixedDemonstrations, demonstrations_of
from mmrl.training.rollouts.group_sampling import DynamicGroupSampler
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, collect, source, trainer

DEMONSTRATED = [Sample(**{**vars(s), "demonstration": s.answer}) for s in questions()]


def mixing(policy=None, reward=None, share=1.0, shaping=None, samples=DEMONSTRATED, **changes):
    prompts = PromptSampler(samples, 4, seed=0)
    return source(
        policy, reward or Exact(), prompts=prompts, demonstrations=MixedDemonstrations(share, shaping, 0), **changes
    )


def test_demonstrations_replace_one_rollout_and_share_group_advantages():
    found = collect(mixing())
    assert sum(batch.rollout.rows for batch in found.micro_batches) == 24
    first, *own = found.micro_batches
    assert first.rollout.media == [sample.answer for sample in first.rollout.samples]
    for row, group in enumerate(first.rollout.group_index.tolist()):
        others = [batch.rollout.media[r] for batch in own for r in (batch.rollout.group_index == group).nonzero()]
        wrong = sum(text != first.rollout.media[row] for text in others)
        assert len(others) == 5 and (first.advantages[row] > 0) == (wrong > 0)
    assert first.rollout.policy_version == 0 and mixing().policy.replay_gap(first.rollout) == 0
    assert found.metrics["demonstrations/rows"] == 4 and found.metrics["demonstrations/reward"] == 1


def test_metrics_exclude_demonstrations():
    seen = []

    class Remembering(Exact):
        def score_one(self, item):
            seen.append((super().score_one(item), item.text == item.references["answer"]))
            return seen[-1][0]

    found = collect(mixing(reward=Remembering()))
    own = [value for value, _ in seen]
    assert sum(own) == 4 + round(found.metrics["reward/exact"] * 20)  # four of the 24 answers are demonstrations


@settings(max_examples=20)
@given(st.floats(0, 1), st.integers(0, 99))
def test_demonstrations_are_added_to_a_share_of_groups(share, seed):
    mixed = MixedDemonstrations(share, None, seed)
    samples = [DEMONSTRATED[n % 8] if n % 3 else questions()[n % 8] for n in range(200)]
    requests = [RolloutRequest(sample, 4, group) for group, sample in enumerate(samples)]
    remaining, targets = mixed.insert(requests, begun=set(range(20)), iteration=5)
    assert all(each.sample.demonstration == each.text and each.group >= 20 for each in targets)
    assert sum(request.n for request in remaining) + len(targets) == 800
    having = sum(sample.demonstration is not None for sample in samples[20:])
    assert len(targets) == pytest.approx(share * having, abs=4 * (share * (1 - share) * having) ** 0.5 + 1e-9)


def test_shaped_demonstration_gradient_equals_luffy():
    """The gradient of mean(A f(p)) by autograd, f(p) = p / (p + gamma), against the credit that is given."""
    policy = TokenPolicy()
    found = collect(mixing(policy, shaping=0.1))
    batch = found.micro_batches[0]
    PolicyGradient(policy, GRPOConfig(aggregate="token", clip={"low": 0.2})).backward(
        batch, 1.0, 0, MetricAccumulator()
    )
    logits = policy.logits.detach().clone().requires_grad_()
    recording, mask = batch.rollout.recording, batch.rollout.mask
    p = logits[recording.prompts].softmax(-1).gather(-1, recording.tokens[..., None])[..., 0]
    (-(batch.advantages[:, None] * p / (p + 0.1))[mask].mean()).backward()
    torch.testing.assert_close(policy.logits.grad, logits.grad)
    assert logits.grad.abs().max() > 1e-3
    plain = collect(mixing(TokenPolicy())).micro_batches[0]
    assert not torch.allclose(plain.step_advantages, batch.step_advantages)


def mastery(policy):
    """The mean probability of the right answers."""
    targets = [(n, [*map(int, s.answer.split()), 0]) for n, s in enumerate(questions())]
    probabilities = policy.logits.detach().softmax(-1)
    return sum(probabilities[n, range(3), ids].prod().item() for n, ids in targets) / len(targets)


def test_demonstrations_teach_unexplored_answers(tmp_path):
    def unlikely():
        policy = TokenPolicy()
        with torch.no_grad():
            policy.logits[:, 0, 1:] -= 9.0  # every text is empty
        return policy

    taught, alone = unlikely(), unlikely()
    for name, policy, mixed in (("taught", taught, MixedDemonstrations(1.0, None, 0)), ("alone", alone, None)):
        prompts = PromptSampler(DEMONSTRATED, 8, seed=0)
        made = trainer(tmp_path / name, source(policy, Exact(), prompts=prompts, demonstrations=mixed), lr=2.0)
        for _ in range(8):
            made.iterate()
    assert mastery(taught) > 0.5 and mastery(alone) < 0.01


def test_group_rewards_see_demonstrations():
    sizes = set()

    class Rank(GroupReward):
        """The share of a group's answers that are shorter."""

        name, needs, range = "rank", ("text",), (0.0, 1.0)

        def score_group(self, items):
            sizes.add(len(items))
            return [sum(len(other.text) < len(item.text) for other in items) / len(items) for item in items]

    collect(mixing(reward=Rank(), micro_batch=4))
    assert sizes == {6}


def test_demonstrations_go_with_dynamic_sampling():
    found = collect(mixing(group_sampler=DynamicGroupSampler(4, 6, 8)))
    assert found.metrics["draws/filled_groups"] == 0  # a group with a right answer among wrong ones says something


def test_invalid_demonstrations_raise_by_sample():
    several = Sample(id="a", demonstration=["x", "y"])
    assert demonstrations_of(several) == ("x", "y") and demonstrations_of(Sample(id="b")) == ()
    with pytest.raises(DataError, match=r"sample 'c': expected .* got a int"):
        demonstrations_of(Sample(id="c", demonstration=3))
    data = DataConfig(path="x", demonstrations=MixedDemonstrationsConfig())
    with pytest.raises(DataError, match="none of the samples has a 'demonstration'"):
        build_demonstrations(data, questions(), seed=0)
