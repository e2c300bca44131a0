"""Prompts come once an epoch, never twice in a batch, and in the same order after a resume."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.data import DataError, PromptSampler, Sample


def samples(n):
    return [Sample(id=str(i), prompt=f"prompt {i}") for i in range(n)]


def ids(batch):
    return [sample.id for sample in batch]


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 99))
def test_epochs_hold_each_sample_once_without_repeats_in_a_batch(groups, more, seed):
    n = groups + more
    sampler = PromptSampler(samples(n), groups, seed)
    batches = [ids(sampler.next()) for _ in range(3 * n)]
    assert all(len(set(batch)) == groups for batch in batches)
    stream = [name for batch in batches for name in batch]
    for start in range(0, len(stream), n):
        assert sorted(stream[start : start + n]) == sorted(ids(samples(n)))
    assert sampler.epoch == pytest.approx(len(stream) / n)


@given(st.integers(0, 25), st.integers(0, 99))
def test_prompt_stream_resumes_exactly(steps, seed):
    sampler = PromptSampler(samples(7), 3, seed)
    for _ in range(steps):
        sampler.next()
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = PromptSampler(samples(7), 3, seed + 1)
    resumed.load_state_dict(state)
    assert resumed.epoch == sampler.epoch
    assert [ids(resumed.next()) for _ in range(10)] == [ids(sampler.next()) for _ in range(10)]


def test_prompt_order_differs_by_seed_and_epoch():
    def stream(seed, steps):
        sampler = PromptSampler(samples(50), 50, seed)
        return [ids(sampler.next()) for _ in range(steps)]

    first, second = stream(0, 2)
    assert first != second and first != stream(1, 1)[0] and first == stream(0, 1)[0]


def test_prompt_stream_rejects_too_few_or_other_samples():
    with pytest.raises(DataError, match="has 3 samples, fewer than the 4 groups of an iteration"):
        PromptSampler(samples(3), 4, seed=0)
    with pytest.raises(DataError, match="groups is 0"):
        PromptSampler(samples(3), 0, seed=0)
    with pytest.raises(DataError, match="not the one that the run began with"):
        PromptSampler(samples(5), 2, 0).load_state_dict(PromptSampler(samples(4), 2, 0).state_dict())


@settings(max_examples=25)
@given(st.integers(1, 4), st.lists(st.integers(0, 9), max_size=4), st.integers(0, 99))
def test_extra_prompts_of_an_iteration_are_new(groups, more, seed):
    sampler = PromptSampler(samples(7), groups, seed)
    for _ in range(5):
        batch = ids(sampler.next())
        for count in more:
            came = ids(sampler.more(count))
            assert len(came) == min(count, 7 - len(batch)) and not set(came) & set(batch)
            batch += came


def test_skipped_prompts_stay_excluded_and_samples_are_found_by_id():
    sampler = PromptSampler(samples(5), 2, seed=0)
    assert sorted(sampler.take(9, without=[1, 3])) == [0, 2, 4]
    assert sampler.sample("3").prompt == "prompt 3"
    with pytest.raises(DataError, match="no sample 'x'"):
        sampler.sample("x")
