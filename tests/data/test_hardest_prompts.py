"""Passes over the hardest prompts: which stay, that there are always enough, and an exact resume."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.config.loading.load import load_config
from mmrl.data.hardest_prompts import HardestSampler
from mmrl.data.prompts import Outcome
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError


def samples(count: int) -> list[Sample]:
    return [Sample(id=f"s{number}", prompt=f"{number}") for number in range(count)]


def learn(sampler: HardestSampler, batch: list[Sample]) -> None:
    """The reward of a prompt is its number, so that the hardest are the first."""
    sampler.learn([Outcome(sample, (float(sample.prompt), float(sample.prompt)), ()) for sample in batch])


def passes(sampler: HardestSampler, iterations: int) -> list[list[str]]:
    found: list[list[str]] = []
    for _ in range(iterations):
        batch = sampler.next()
        learn(sampler, batch)
        found.append([sample.id for sample in batch])
    return found


def test_each_pass_has_the_hardest_half_of_the_one_before():
    sampler = HardestSampler(samples(8), groups=2, seed=0, keep=0.5)
    drawn = passes(sampler, 8)
    assert {name for batch in drawn[:4] for name in batch} == {f"s{number}" for number in range(8)}
    assert {name for batch in drawn[4:6] for name in batch} == {"s0", "s1", "s2", "s3"}
    assert all(set(batch) == {"s0", "s1"} for batch in drawn[6:])  # never fewer than an iteration needs
    assert sampler.metrics() == {"prompts/pass": 3.0, "prompts/share": 0.25}
    assert sampler.sample("s7").prompt == "7"


@given(st.integers(3, 12), st.integers(1, 3), st.floats(0.05, 1), st.integers(0, 30))
def test_a_resumed_sampler_goes_on_alike(count, groups, keep, stop):
    straight, begun = (HardestSampler(samples(count), groups, 5, keep=keep) for _ in range(2))
    passes(straight, stop), passes(begun, stop)
    resumed = HardestSampler(samples(count), groups, 9, keep=keep)
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert passes(resumed, 9) == passes(straight, 9)


def test_other_samples_and_shares_are_refused():
    sampler = HardestSampler(samples(8), 2, 0)
    with pytest.raises(DataError, match="not the one that the run began with"):
        HardestSampler(samples(6), 2, 0).load_state_dict(sampler.state_dict())
    with pytest.raises(DataError, match="no sample 'x'"):
        sampler.sample("x")
    with pytest.raises(DataError, match=r"data\.prompts\.keep is 0"):
        HardestSampler(samples(8), 2, 0, keep=0)
    with pytest.raises(ConfigError, match=r"data\.prompts\.keep"):
        load_config("shapes-reasoning", ["data.prompts={name: hardest, keep: 0}"])
