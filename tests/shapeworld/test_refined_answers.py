"""Answers to answers: each step reads the calculation and the answer of the step before."""

from __future__ import annotations

import pytest

from mmrl_shapeworld.reasoning.refined_answers import WORLDS, measured, reasoner, refined_answers, trained


@pytest.fixture(scope="module")
def untrained():
    return refined_answers(0, on="sums-development", prompts=12, depth=3, trained_depth=2)


def test_measures_follow_from_the_steps(untrained):
    assert set(untrained) == {"right-1", "right-2", "right-3", "last", "past", "gain"}
    one, two, three = (untrained[f"right-{step}"] for step in (1, 2, 3))
    assert 0 < sum(one) < len(one) == 12 and untrained["last"] == three
    assert untrained["past"] == [c - b for b, c in zip(two, three, strict=True)]
    assert untrained["gain"] == [c - a for a, c in zip(one, three, strict=True)]


@pytest.mark.integration
def test_a_step_is_measured_alike_for_any_number_of_steps(untrained):
    world = WORLDS["sums"]
    assert measured(reasoner(world, None), world, "sums-development", 12, 1, 1)["right-1"] == untrained["right-1"]


@pytest.mark.slow
def test_a_policy_that_was_trained_answers_otherwise(untrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    growing = {"name": "growing", "proposer": {"name": "attempts", "args": {"message": "wait", "keep": "last"}}}
    keys = {"data.groups": 4, "data.group_size": 4, "training.iterations": 2, "data.prompts": growing}
    found = refined_answers(0, "sums-development", 12, 3, 2, keys)
    assert set(found) == set(untrained) and list(tmp_path.iterdir()) == []
    again = refined_answers(0, "sums-development", 12, 1, 2, keys)
    assert again["last"] == found["right-1"] and trained.cache_info().hits == 1
