"""Prompts of several sources: their shares, what a short source leaves to the others, and an exact resume."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.data.mixture_prompts import MixtureSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError


def samples(**counts: int) -> list[Sample]:
    return [
        Sample(id=f"{name}{number}", prompt=f"{number}", source=name)
        for name, count in counts.items()
        for number in range(count)
    ]


def drawn(sampler: MixtureSampler, iterations: int) -> list[list[str]]:
    return [[sample.id for sample in sampler.next()] for _ in range(iterations)]


def test_shares_of_whole_prompts_are_exact_in_every_iteration():
    sampler = MixtureSampler(samples(a=20, b=20), groups=4, seed=0, weights={"a": 3, "b": 1})
    for _ in range(9):
        assert Counter(sample.source for sample in sampler.next()) == {"a": 3, "b": 1}
        assert sampler.metrics() == {"prompts/share/a": 0.75, "prompts/share/b": 0.25}


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 60))
def test_other_shares_are_exact_over_many_iterations(weights, groups, iterations):
    names = "abcde"[: len(weights)]
    sampler = MixtureSampler(
        samples(**dict.fromkeys(names, 9)), groups, 0, weights=dict(zip(names, weights, strict=True))
    )
    batches = [sampler.next() for _ in range(iterations)]
    assert all(len({each.id for each in batch}) == groups for batch in batches)
    found = Counter(each.source for batch in batches for each in batch)
    for name, weight in zip(names, weights, strict=True):
        assert abs(found[name] - iterations * groups * weight / sum(weights)) < len(weights)


def test_each_source_has_epochs_of_its_own():
    batches = drawn(MixtureSampler(samples(a=8, b=2), groups=4, seed=1, weights={"a": 2, "b": 2}), 4)
    assert sorted(name for batch in batches for name in batch if name[0] == "a") == [
        f"a{number}" for number in range(8)
    ]
    assert all(sorted(name for name in batch if name[0] == "b") == ["b0", "b1"] for batch in batches)


def test_a_short_source_leaves_its_places_to_the_others():
    sampler = MixtureSampler(samples(a=9, b=1), groups=4, seed=0, weights={"a": 1, "b": 1})
    assert [Counter(each.source for each in sampler.next()) for _ in range(3)] == 3 * [Counter(a=3, b=1)]
    assert len(sampler.more(9)) == 6  # those of `a` that the iteration has not had
    assert sampler.more(1) == []


def test_weights_may_be_moved_and_0_leaves_a_source_out():
    sampler = MixtureSampler(samples(a=9, b=9), groups=3, seed=0, weights={"a": 1, "b": 0})
    assert {each.source for each in sampler.next()} == {"a"}
    sampler.weights = {"a": 0, "b": 2}
    assert {each.source for each in sampler.next()} == {"b"}


@given(st.integers(0, 12), st.floats(0.1, 3))
def test_a_resumed_sampler_goes_on_alike(stop, weight):
    straight, begun = (MixtureSampler(samples(a=7, b=5), 3, 5, weights={"a": 1, "b": 1}) for _ in range(2))
    for each in (straight, begun):
        drawn(each, stop)
        each.weights = {"a": 1, "b": weight}
        drawn(each, 2)
    resumed = MixtureSampler(samples(a=7, b=5), 3, 9, weights={"a": 1, "b": 1})
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert drawn(resumed, 9) == drawn(straight, 9)
    assert resumed.sample("b3").source == "b"


def test_what_cannot_be_mixed_is_refused():
    for weights in ({"a": 1}, {"a": 1, "b": 1, "c": 1}):
        with pytest.raises(DataError, match="give each source a weight"):
            MixtureSampler(samples(a=3, b=3), 2, 0, weights=weights)
    with pytest.raises(DataError, match="one is above 0"):
        MixtureSampler(samples(a=3, b=3), 2, 0, weights={"a": 0, "b": 0})
    with pytest.raises(DataError, match="add samples or lower"):
        MixtureSampler(samples(a=1, b=1), 4, 0, weights={"a": 1, "b": 1})
    sampler = MixtureSampler(samples(a=3, b=3), 2, 0, weights={"a": 1, "b": 1})
    with pytest.raises(DataError, match="resume with the same samples"):
        MixtureSampler(samples(a=3, c=3), 2, 0, weights={"a": 1, "c": 1}).load_state_dict(sampler.state_dict())
    with pytest.raises(DataError, match="no sample 'x'"):
        sampler.sample("x")
