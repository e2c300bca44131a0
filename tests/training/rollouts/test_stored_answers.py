"""A-LoL's experience: stored answers that beat the reference's own, with its log-probabilities (arXiv:2305.14718)."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from mmrl.config.algorithms.stored_answers import ALoLConfig
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.stored_answers import StoredAnswers
from mmrl.workflows.train import train
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Right, collect


def stored(*texts: str) -> list[Sample]:
    """Questions with the right answer, of reward 1, and these texts beside it."""
    return [replace(each, demonstration=[str(each.answer), *texts]) for each in questions()]


def source(policy: TokenPolicy | None = None, samples: list[Sample] | None = None, **changes) -> StoredAnswers:
    settings = {"rows": 6, "micro_batch": 4, "seed": 3}
    return StoredAnswers(
        policy=policy or TokenPolicy(),
        samples=samples or stored("3 3 3", "2"),
        suite=RewardSuite([(Right(), 1.0)], min_valid_share=0.5),
        **(settings | changes),
    )


def rewards_of(policy: TokenPolicy, sample: Sample) -> float:
    """The mean reward of the policy's answers to a sample, over all 64 of them."""
    table = policy.logits[int(sample.id[1:])].detach().double().softmax(-1)
    total = 0.0
    for a in range(4):
        for b in range(4):
            for c in range(4):
                words = [w for w in (a, b, c)]
                text = " ".join(str(w) for w in words[: words.index(0)] if w) if 0 in words else f"{a} {b} {c}"
                answer = str(sample.answer)
                reward = 1.0 if text == answer else 0.5 * (bool(text) and text[0] == answer[0])
                total += float(table[0, a] * table[1, b] * table[2, c]) * reward
    return total


@pytest.mark.integration
def test_values_are_the_mean_rewards_of_the_reference():
    policy = TokenPolicy()
    found = source(policy, values=600)
    collect(found)
    values = {each.sample: each.value for each in found._answers}
    for sample in questions():
        assert values[sample.id] == pytest.approx(rewards_of(policy, sample), abs=0.06)  # three standard errors


def test_answers_that_are_no_better_are_dropped():
    found = source()
    batches = collect(found).micro_batches
    assert [batch.rollout.rows for batch in batches] == [4, 2]
    assert all(each.advantage > 0 for each in found._answers)
    right = {each.sample for each in found._answers if each.place == 0}
    assert right == {sample.id for sample in questions()}  # no value is 1
    for batch in batches:
        for row, sample in enumerate(batch.rollout.samples):
            measured = [each for each in found._answers if each.sample == sample.id]
            texts = sample.demonstration
            (own,) = (each for each in measured if texts[each.place] == batch.rollout.media[row])
            assert batch.advantages[row] == pytest.approx(own.reward - own.value)
        assert torch.equal(batch.step_advantages, batch.advantages[:, None].where(batch.rollout.mask, 0.0))


def test_negatives_are_kept_where_configured():
    everything = source(negatives=True, draw="uniform", rows=64)
    batches = collect(everything).micro_batches
    assert len(everything._answers) == 24 and min(batch.advantages.min() for batch in batches) < 0
    metrics = collect(source(negatives=True)).metrics
    assert metrics["stored/kept_share"] == 1.0 and collect(source()).metrics["stored/kept_share"] < 1.0
    assert metrics["stored/reward"] == pytest.approx(sum(e.reward for e in everything._answers) / 24)


def test_answers_are_drawn_in_proportion_to_their_advantage():
    found = source(stored_policy := TokenPolicy(), rows=40)
    assert stored_policy.rollouts == 0
    counts: dict[tuple[str, int], int] = {}
    for iteration in range(60):
        collect(found, 0) if iteration == 0 else None
        for number in found._drawn(iteration):
            each = found._answers[number]
            counts[each.sample, each.place] = counts.get((each.sample, each.place), 0) + 1
    total = sum(each.advantage for each in found._answers)
    for each in found._answers:
        share = counts.get((each.sample, each.place), 0) / 2400
        expected = each.advantage / total
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected / 2400))
    even = source(rows=40, draw="uniform")
    collect(even)
    drawn = torch.tensor([even._drawn(iteration) for iteration in range(60)]).flatten()
    assert drawn.bincount().max() < 2 * drawn.bincount().min()


def test_nothing_is_sampled_after_the_first_iteration():
    policy = TokenPolicy()
    found = source(policy)
    collect(found, 0)
    sampled = policy.rollouts
    collect(found, 1)
    assert sampled > 0 and policy.rollouts == sampled


def test_ratios_are_to_the_reference_however_far_the_policy_has_moved():
    policy = TokenPolicy()
    found = source(policy, rows=24)
    fresh = collect(found, 0)
    with torch.no_grad():
        policy.logits += torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(5))
    policy.version = 1
    for batch in (*fresh.micro_batches, *collect(found, 1).micro_batches):
        prompts, tokens = batch.rollout.recording.prompts, batch.rollout.recording.tokens
        before = policy._start[prompts].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        torch.testing.assert_close(batch.rollout.log_probs, before.where(batch.rollout.mask, 0.0))
        assert batch.rollout.policy_version == 0


def test_the_gradient_is_the_papers():
    policy = TokenPolicy()
    found = source(policy, rows=24, micro_batch=24)
    collect(found, 0)
    with torch.no_grad():
        policy.logits += 0.7 * torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(5))
    policy.version = 1
    (batch,) = collect(found, 1).micro_batches
    PolicyGradient(policy, ALoLConfig(length=1)).backward(batch, 1.0, 0, MetricAccumulator())
    got, policy.logits.grad = policy.logits.grad.clone(), None
    loss = torch.zeros((), dtype=torch.float64)  # as lolrl_qlora_llama_hh.py@223df72 of the authors: sums over tokens
    clipped = 0
    for row in range(24):
        mask, prompt = batch.rollout.mask[row], batch.rollout.recording.prompts[row]
        tokens = batch.rollout.recording.tokens[row]
        now = policy.logits[prompt].double().log_softmax(-1).gather(-1, tokens[:, None])[mask, 0].sum()
        before = policy._start[prompt].double().log_softmax(-1).gather(-1, tokens[:, None])[mask, 0].sum()
        ratio = (now - before).detach().exp()
        clipped += int(not 0.1 <= ratio <= 1.9)
        loss = loss - ratio.clamp(0.1, 1.9) * max(batch.advantages[row].item(), 0.0) * now / 24
    loss.backward()
    assert 0 < clipped < 24
    torch.testing.assert_close(got, policy.logits.grad, atol=1e-6, rtol=1e-5)


def test_a_resumed_source_knows_the_reference():
    policy = TokenPolicy()
    found = source(policy)
    collect(found, 0)
    state = json.loads(json.dumps(found.state_dict()))
    with torch.no_grad():
        policy.logits += 1.0
        policy.logits[..., 0] -= 2.0
    policy.version = 1
    resumed = source(policy)
    resumed.load_state_dict(state)
    for one, other in zip(collect(found, 1).micro_batches, collect(resumed, 1).micro_batches, strict=True):
        assert torch.equal(one.rollout.log_probs, other.rollout.log_probs)
        assert torch.equal(one.advantages, other.advantages) and one.rollout.media == other.rollout.media
    measured_anew = source(policy)
    collect(measured_anew, 1)
    assert measured_anew._answers != found._answers  # so the state matters


def test_answers_that_are_all_worse_are_an_error():
    worst = [replace(each, demonstration="3 3 3" if str(each.answer)[0] != "3" else "2") for each in questions()]
    with pytest.raises(DataError, match=r"none of 8 stored answers has a better reward .* a_lol has nothing to learn"):
        collect(source(samples=worst))


@pytest.mark.integration
def test_a_run_resumes_to_the_bit_with_the_reference_that_pretraining_left(tmp_path):
    def run(name: str, *more: str, resume: bool = False):
        folder = tmp_path / name
        words = [
            *("algorithm={name: a_lol, values: 2}", "pretraining={iterations: 1}", "evaluation={}"),
            *("data={path: 'shapeworld:sums-few-subtractions', groups: 8}", "sampling.max_new_tokens=24"),
            *("training={iterations: 3, save_every: 1}", f"run.dir={folder}", "run.display=quiet", *more),
        ]
        return train(load_config("shapes-reasoning", words), folder if resume else None)

    whole = run("whole")
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [("stored/value" in row) for row in rows] == [False, True, True]
    assert rows[1]["replay_gap"] < 1e-4 and rows[1]["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert rows[2]["ratio_mean"] != pytest.approx(1.0, abs=1e-4)
    run("cut", "training.iterations=2")
    run("cut", resume=True)
    one, two = (load_file(each / "checkpoints/step-3/model.safetensors") for each in (whole, tmp_path / "cut"))
    assert all(torch.equal(one[name], two[name]) for name in one)
