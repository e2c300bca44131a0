"""Prompts whose answers differ come more often, all are tried, and a resume goes on exactly."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.data import DataError, Sample
from mmrl.data.prompts import Outcome, VarianceAwareSampler, distinct_share


def samples(n):
    return [Sample(id=str(i), prompt=f"prompt {i}") for i in range(n)]


def outcome(sample, totals, answers=()):
    return Outcome(sample, totals, answers)


def taught(n=20, groups=4, telling=2, **settings):
    """The first few prompts are half right, the others always right."""
    sampler = VarianceAwareSampler(samples(n), groups, seed=0, **settings)
    sampler.learn([outcome(s, [0.0, 1.0] if i < telling else [1.0, 1.0]) for i, s in enumerate(samples(n))])
    return sampler


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(0, 9), st.floats(0, 1), st.integers(0, 99), st.integers(0, 4))
def test_batches_have_distinct_prompts_at_every_share(groups, more, share, seed, extra):
    n = groups + more
    sampler = VarianceAwareSampler(samples(n), groups, seed, share=share)
    for _ in range(4):
        batch = [s.id for s in [*sampler.next(), *sampler.more(extra)]]
        assert len(batch) == len(set(batch)) == min(groups + extra, n)
        sampler.learn([outcome(sampler.sample(id), [0.0, float(id) / n]) for id in batch])


def test_half_of_a_batch_is_sampled_by_score():
    sampler = taught(share=0.5)
    drawn = Counter(s.id for _ in range(200) for s in sampler.next())
    uniform = 200 * 2 / 20  # how often each comes in the shuffled half
    assert drawn["0"] + drawn["1"] > 2 * uniform + 0.8 * 200 * 2 * 0.9  # both places go to the two that tell
    assert all(drawn[str(i)] < 2 * uniform for i in range(2, 20))  # a place is left where the shuffle took one of them
    assert all(drawn[str(i)] >= uniform - 1 for i in range(20))


def test_without_a_share_prompts_are_the_shuffled_epoch():
    sampler = taught(share=0.0)
    assert set(Counter(s.id for _ in range(50) for s in sampler.next()).values()) == {10}


def test_prompts_are_sampled_in_proportion_to_their_score():
    sampler = VarianceAwareSampler(samples(3), 1, seed=0, share=1.0, outcome=1.0, diversity=0.0)
    spreads = {"0": [0.0, 1.0], "1": [0.25, 0.75], "2": [0.5, 0.5]}  # variances 1/4, 1/16 and 0
    sampler.learn([outcome(s, spreads[s.id]) for s in samples(3)])
    assert sampler.scores() == pytest.approx([0.25, 0.0625, 0.0])
    drawn = Counter(sampler.next()[0].id for _ in range(600))
    assert drawn["0"] / 600 == pytest.approx(0.8, abs=0.05) and drawn["2"] == 0


def test_untried_prompts_have_the_highest_score():
    sampler = VarianceAwareSampler(samples(30), 3, seed=0, share=1.0, outcome=0.8, diversity=0.2)
    assert set(sampler.scores()) == {0.8 * 0.25 + 0.2}
    for _ in range(10):
        sampler.learn([outcome(s, [1.0, 1.0]) for s in sampler.next()])
    assert sampler.metrics() == {"prompts/scored_share": 1.0, "prompts/score": 0.0}
    sampler.learn([outcome(samples(30)[4], [1.0])])  # a single answer has no variance to speak of
    assert sampler.scores()[4] == 0.0
    assert len({s.id for s in sampler.next()}) == 3  # nothing tells: any will do


def test_score_adds_the_diversity_of_answers():
    sampler = VarianceAwareSampler(samples(1), 1, seed=0, outcome=2.0, diversity=0.5)
    sampler.learn([outcome(samples(1)[0], [0.0, 1.0], [["a", "b", "c"], ["a", "b", "d"]])])
    assert sampler.scores() == pytest.approx([2.0 * 0.25 + 0.5 * 0.75])


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=5))
def test_distinct_share_counts_bigrams(answers):
    grams = [gram for a in answers for gram in ([*itertools.pairwise(a)] or [tuple(a)])]
    assert distinct_share(answers) == (len(set(grams)) / len(grams) if grams else 0.0)


@settings(max_examples=15)
@given(st.integers(0, 8), st.integers(0, 9))
def test_variance_aware_prompts_resume_exactly(steps, seed):
    def teach(sampler, batch):
        sampler.learn([outcome(s, [0.0, int(s.id) / 9]) for s in batch])

    sampler = VarianceAwareSampler(samples(9), 3, seed)
    for _ in range(steps):
        teach(sampler, sampler.next())
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = VarianceAwareSampler(samples(9), 3, seed)
    resumed.load_state_dict(state)
    for _ in range(4):
        one, other = sampler.next(), resumed.next()
        assert one == other and np.array_equal(sampler.scores(), resumed.scores())
        teach(sampler, one)
        teach(resumed, other)
    with pytest.raises(DataError, match="not the one that the run began with"):
        VarianceAwareSampler(samples(8), 3, seed).load_state_dict(state)
