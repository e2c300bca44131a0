"""The measure of judgement, the steps of a chain, and the splits of hard calculations and of two halves."""

from __future__ import annotations

import pytest

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld.reasoning.calculation_splits import calculations, samples
from mmrl_shapeworld.reasoning.calculations import FAMILIES, part_of
from mmrl_shapeworld.reasoning.chain_use import ChainWhereNeeded


@pytest.mark.parametrize(
    ("operands", "text", "expected"),
    [
        (2, "<think></think>6", 1),
        (2, "<think>8</think>6", 0),
        (5, "<think>8 6 1 2</think>2", 1),
        (5, "<think></think>2", 0),
        (5, "<think> </think>2", 0),
    ],
)
def test_a_chain_is_judged_by_the_operands(operands, text, expected):
    sample = next(each for each in samples("sums-train") if each.metadata["operands"] == operands)
    item = reward_input(sample, text, group=0, id="a")
    assert ChainWhereNeeded().score([item]).values["chain_where_needed"].tolist() == [expected]


def test_zero_operands_are_refused():
    with pytest.raises(RewardError, match="1 or above"):
        ChainWhereNeeded(operands=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_hard_splits_have_the_largest_numbers_of_operands(family):
    largest = set(FAMILIES[family].operands[-3:])
    for part, of in (("hard", "train"), ("hard-development", "development"), ("hard-validation", "validation")):
        drawn = calculations(f"{family}-{part}")
        assert {each.operands for each in drawn} == largest
        assert {part_of(each) for each in drawn} == {of}


def test_halves_are_short_or_long():
    drawn = calculations("sums-halves")
    easy = sum(each.operands == 2 for each in drawn)
    assert {each.operands for each in drawn} == {2, 5, 6} and 0.3 < easy / len(drawn) < 0.5
    validation = calculations("sums-halves-validation")
    assert len(set(validation)) == len(validation) and any(each.operands == 2 for each in validation)


def test_points_are_the_steps_of_the_chain():
    for sample in samples("remainders-hard")[:20]:
        chain, points = sample.metadata["chain"], sample.metadata["points"]
        assert chain == f"<think>{''.join(points)}</think>{sample.answer}"
        assert chain.startswith(sample.metadata["opening"]) and sample.metadata["opening"].endswith("=")
