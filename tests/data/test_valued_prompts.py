"""Prompts of high value take the places of those without a signal, and a resume goes on exactly."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.config.loading.load import load_config
from mmrl.config.validation import validation_errors
from mmrl.data import Sample
from mmrl.data.prompts import Outcome
from mmrl.data.valued_prompts import ValuedSampler, task_value
from mmrl.errors import ConfigError


def samples(n):
    return [Sample(id=str(i), prompt=f"prompt {i}") for i in range(n)]


@pytest.mark.parametrize(
    ("totals", "difficulty", "uncertainty", "value"),
    [
        ([1.0, 1.0], 0.2, 0.8, 0.0),
        ([0.0, 0.0], 0.2, 0.8, 0.2),  # hard, and nothing to tell answers apart
        ([0.0, 1.0], 0.2, 0.8, 0.1 + 0.8),
        ([0.0, 0.0, 0.0, 1.0], 0.5, 1.0, 0.5 * 0.75 + 4 * 3 / 16),
        ([0.4, 0.6], 0.0, 1.0, 4 * 0.01),
    ],
)
def test_value_by_hand(totals, difficulty, uncertainty, value):
    assert task_value(totals, difficulty, uncertainty) == pytest.approx(value)


@pytest.mark.integration
def test_further_prompts_are_drawn_by_value_and_the_first_are_not():
    """Values of 0.9, 0.2, 0.2 and 0: after a first prompt of value 0, the odds are 9 : 2 : 2."""
    sampler = ValuedSampler(samples(4), 1, seed=0)
    totals = [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    sampler.learn([Outcome(sample, each, ()) for sample, each in zip(samples(4), totals, strict=True)])
    assert sampler.metrics() == {"prompts/valued_share": 1.0, "prompts/value": pytest.approx(1.3 / 4)}
    first, further = Counter(), Counter()
    for _ in range(4000):
        (start,), (other,) = sampler.next(), sampler.more(1)
        first[start.id] += 1
        further[start.id, other.id] += 1
    assert set(first.values()) == {1000}
    assert [further["3", id] / 1000 for id in "012"] == pytest.approx([9 / 13, 2 / 13, 2 / 13], abs=0.05)
    assert [further["0", id] / 1000 for id in "123"] == pytest.approx([0.5, 0.5, 0.0], abs=0.05)


def test_prompts_without_answers_come_before_those_of_less_than_the_highest_value():
    sampler = ValuedSampler(samples(6), 1, seed=0, difficulty=0.0, uncertainty=1.0)
    sampler.learn([Outcome(sample, [1.0, 1.0], ()) for sample in samples(5)])
    for _ in range(20):
        (first,) = sampler.next()
        (further,) = sampler.more(1)
        assert "5" in (first.id, further.id)


@settings(max_examples=15)
@given(st.integers(0, 8), st.integers(0, 9), st.integers(0, 4))
def test_valued_prompts_are_different_and_resume_exactly(steps, seed, extra):
    def step(sampler):
        batch = [*sampler.next(), *sampler.more(extra)]
        sampler.learn([Outcome(each, [0.0, int(each.id) / 9], ()) for each in batch])
        return [each.id for each in batch]

    sampler = ValuedSampler(samples(9), 3, seed)
    for _ in range(steps):
        batch = step(sampler)
        assert len(set(batch)) == len(batch) == 3 + extra
    resumed = ValuedSampler(samples(9), 3, seed)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert [step(sampler) for _ in range(4)] == [step(resumed) for _ in range(4)]


def test_values_without_places_to_take_are_refused():
    config = load_config("shapes-vlm", ["data.prompts={name: valued}"])
    assert any(line.startswith("data.prompts: valued chooses what takes") for line in validation_errors(config))
    both = ["data.prompts={name: valued}", "data.group_sampling={name: dynamic}"]
    assert not validation_errors(load_config("shapes-vlm", both))
    with pytest.raises(ConfigError, match="no prompt has a value"):
        load_config("shapes-vlm", ["data.prompts={name: valued, difficulty: 0, uncertainty: 0}"])
