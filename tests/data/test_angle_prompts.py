"""Prompts around a place in the ranking by angle, and how the place moves."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest

from mmrl.data.angle_prompts import AngleSampler
from mmrl.data.prompts import Outcome
from mmrl.data.sample import Sample
from mmrl.errors import DataError


def samples(count: int, angle=lambda number: number / 100) -> list[Sample]:
    return [Sample(id=f"{n}", prompt=f"{n}", metadata={"angle": angle(n)}) for n in range(count)]


def outcomes(batch: list[Sample], total: float) -> list[Outcome]:
    return [Outcome(sample, [total, total], []) for sample in batch]


def test_a_narrow_density_begins_with_the_highest_angles():
    sampler = AngleSampler(samples(100), groups=4, seed=0, width=0.001)
    assert sorted(int(each.id) for each in sampler.next()) == [96, 97, 98, 99]
    assert sampler.metrics() == {"prompts/place": 0.0, "prompts/angle": pytest.approx(0.975)}


def test_draws_have_the_density_of_the_normal():
    """With one prompt an iteration, the shares of ranks are those of the density, within four standard errors."""
    sampler = AngleSampler(samples(10), groups=1, seed=0, width=0.3)
    drawn = Counter(9 - int(sampler.next()[0].id) for _ in range(4000))
    density = np.exp(-0.5 * (np.arange(10) / 3.0) ** 2)
    for rank, share in enumerate(density / density.sum()):
        assert abs(drawn[rank] / 4000 - share) < 4 * math.sqrt(share * (1 - share) / 4000)


def test_the_mean_moves_by_hand():
    """After two iterations with angles of 0.5, half right: 10 ranks / 2 (tanh(2 (0.5 - 0.5)) + tanh(2 0.5))."""
    sampler = AngleSampler(samples(100, lambda _: 0.5), groups=4, seed=0, width=0.1, step=0.1, every=2)
    sampler.learn(outcomes(sampler.next(), 1.0))
    assert sampler.mean == 0.0
    sampler.learn(outcomes(sampler.next(), 0.0))
    assert sampler.mean == pytest.approx(5 * math.tanh(1.0))
    sampler.learn(outcomes(sampler.next(), 1.0))
    sampler.learn(outcomes(sampler.next(), 1.0))
    assert sampler.mean == pytest.approx(5 * math.tanh(1.0) + 5 * (math.tanh(1.0) + math.tanh(1.0)))


def test_the_mean_neither_goes_back_nor_leaves_the_ranking():
    sampler = AngleSampler(samples(20, lambda _: 0.0), groups=2, seed=0, step=0.5, every=1)
    sampler.learn(outcomes(sampler.next(), 0.0))
    assert sampler.mean == 0.0
    fast = AngleSampler(samples(20, lambda _: 9.0), groups=2, seed=0, step=0.9, every=1)
    for _ in range(3):
        fast.learn(outcomes(fast.next(), 1.0))
    assert fast.mean == 19.0
    assert len(fast.next()) == 2 and fast.metrics()["prompts/place"] == 1.0


def test_an_iteration_has_no_prompt_twice():
    sampler = AngleSampler(samples(8), groups=5, seed=3, width=0.05)
    first = sampler.next()
    more = sampler.more(9)
    assert len({each.id for each in first + more}) == 8 and len(more) == 3
    assert sampler.sample("3").id == "3"


def test_a_resumed_sampler_goes_on_exactly():
    sampler = AngleSampler(samples(30), groups=3, seed=1, every=2)
    for _ in range(3):
        sampler.learn(outcomes(sampler.next(), 0.8))
    resumed = AngleSampler(samples(30), groups=3, seed=7, every=2)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for _ in range(4):
        batch, other = sampler.next(), resumed.next()
        assert [each.id for each in batch] == [each.id for each in other]
        sampler.learn(outcomes(batch, 0.4))
        resumed.learn(outcomes(other, 0.4))
    assert resumed.mean == sampler.mean > 0


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(DataError, match=r"metadata\.angle is None.*mmrl data angles"):
        AngleSampler([Sample(id="a", prompt="a")], groups=1, seed=0)
    with pytest.raises(DataError, match="fewer than the 3 groups"):
        AngleSampler(samples(2), groups=3, seed=0)
    with pytest.raises(DataError, match="no sample 'x'"):
        AngleSampler(samples(2), groups=1, seed=0).sample("x")
    with pytest.raises(DataError, match="not the one that the run began with"):
        AngleSampler(samples(2), groups=1, seed=0).load_state_dict(AngleSampler(samples(3), 1, 0).state_dict())
