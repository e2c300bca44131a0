"""Ranked factors: decisions by hand, and no dependence on scales."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.errors import ConfigError, DataError
from mmrl.rewards.learned.ranked_factors import factor_margins, ranked_sides
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld import preferences
from tests.rewards.learned.test_train_reward import pair, score


def test_the_first_factor_that_differs_enough_decides():
    first = torch.tensor([[0.9, 5.0, 0.0], [0.5, 5.0, 0.0], [0.5, 4.0, 0.0], [0.5, 4.0, 1.0], [0.3, 9.0, 9.0]])
    second = torch.tensor([[0.5, 9.0, 9.0], [0.4, 3.0, 9.0], [0.4, 5.0, 0.0], [0.4, 5.0, 0.0], [0.5, 0.0, 0.0]])
    side, level = ranked_sides(first, second, torch.tensor([0.15, 1.0, 0.0]))
    assert side.tolist() == [1, 1, 0, 1, -1]
    assert level.tolist() == [0, 1, 3, 2, 0]
    flat = ranked_sides(first, second, torch.zeros(3))
    assert flat[0].tolist() == [1, 1, 1, 1, -1] and flat[1].tolist() == [0] * 5


@given(st.integers(0, 2**31), st.floats(0.01, 100), st.integers(0, 2))
def test_scales_and_shifts_of_factors_do_not_matter_and_a_swap_turns_every_side(seed, scale, column):
    values = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    unit = torch.ones(3, dtype=torch.float64)
    unit[column] = scale
    margins = factor_margins(values.flatten(0, 1), [0.3, 0.5, 0.0])
    changed = values * unit + 7.0
    found = ranked_sides(*values, margins)
    rescaled = ranked_sides(*changed, factor_margins(changed.flatten(0, 1), [0.3, 0.5, 0.0]))
    assert torch.equal(found[0], rescaled[0]) and torch.equal(found[1], rescaled[1])
    assert torch.equal(ranked_sides(values[1], values[0], margins)[0], -found[0])
    summed = torch.sub(*(values * torch.tensor([1.0, 1e6, 1.0])).sum(-1)).sign()
    assert not torch.equal(summed, found[0])  # the control: a sum follows the factor of the widest spread


def ranked_pair(number: int, **factors: tuple[float, float]):
    return pair(number, metadata={"factors": {name: list(values) for name, values in factors.items()}})


def write(path, samples):
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    return path


def recipe(path, *overrides):
    short = ["training.steps=60", "training.batch=16", "head.hidden=16", "ensemble=1", "labels={}"]
    both = [f"data.path={path}", f"data.validation={path}"]
    return load_reward_recipe("shapes-preferences", [*both, *short, *overrides])


RANKED = "factors=[{name: dark, margin: 0.5}, {name: late}]"


@pytest.mark.integration
def test_a_reward_model_learns_what_the_tree_prefers(tmp_path):
    """`chosen` is the red picture; the factors prefer the dark one wherever they differ in darkness."""
    decided = [ranked_pair(n, dark=(0.0, 1.0 + n % 2), late=(float(n % 3), 0.0)) for n in range(24)]
    ties = [ranked_pair(n, dark=(0.0, 0.1), late=(1.0, 1.0)) for n in range(24, 30)]
    path = write(tmp_path / "pairs.jsonl", [*decided, *ties])
    done = train_reward(recipe(path, RANKED), tmp_path / "model")
    assert done.quality.accuracy == {"overall": 1.0}
    values = score(done.folder)["learned"]
    assert values[0] < values[1] < values[2]


def test_factors_that_are_missing_or_do_not_fit_are_named(tmp_path):
    path = write(tmp_path / "pairs.jsonl", [ranked_pair(0, dark=(0.0, 1.0))])
    with pytest.raises(DataError, match=r"'p0': metadata.factors.late is None; expected two numbers"):
        train_reward(recipe(path, RANKED), tmp_path / "a")
    wrong = replace(pair(0), metadata={"factors": {"dark": [0, True], "late": [0, 1]}})
    with pytest.raises(DataError, match=r"metadata.factors.dark is \[0, True\]"):
        train_reward(recipe(write(tmp_path / "wrong.jsonl", [wrong]), RANKED), tmp_path / "b")
    with pytest.raises(ConfigError, match="factors decide one axis of pairs"):
        train_reward(recipe(path, RANKED, "axes=[one, two]"), tmp_path / "c")


@pytest.mark.slow
def test_factor_pairs_are_in_no_order_and_have_every_factor():
    samples = preferences.samples("factors-development")
    match = torch.tensor([each.metadata["factors"]["match"] for each in samples])
    ahead = (match[:, 0] > match[:, 1]).float().mean().item()
    behind = (match[:, 0] < match[:, 1]).float().mean().item()
    assert abs(ahead - behind) < 0.1 and 0.05 < 1 - ahead - behind < 0.6
    assert {name for each in samples for name in each.metadata["factors"]} == {"match", "size", "centre"}
